{{/* The file of the service; what is in it needs a new pod when it changes, what is in policy.yaml does not. */}}
{{- define "lockstep.coordinator.config" -}}
{{- $coordinator := .Values.coordinator -}}
{{- include "lockstep.brokerConfig" (dict "root" . "service" "coordinator") }}
http_host: {{ include "lockstep.listenAddress" . | quote }}
http_port: {{ int64 $coordinator.port }}
state_directory: /var/lib/lockstep/state
{{- if $coordinator.recording.enabled }}
record_directory: /var/lib/lockstep/recording
{{- end }}
{{- if $coordinator.apiToken.enabled }}
api_token_file: /etc/lockstep-token/token
{{- end }}
policy_file: /etc/lockstep/policy.yaml
{{- $own := $coordinator.config -}}
{{- with include "lockstep.coordinator.outside" . -}}
{{- if not $own.external_url -}}
{{- $own = merge (dict "external_url" .) $own -}}
{{- end -}}
{{- end -}}
{{- include "lockstep.ownConfig" $own }}
{{- end -}}

{{/* Where people reach the pages by an Ingress or a route of this chart; empty where there is none with a host. Argument: root. */}}
{{- define "lockstep.coordinator.outside" -}}
{{- $coordinator := .Values.coordinator -}}
{{- if and $coordinator.ingress.enabled $coordinator.ingress.host -}}
{{- printf "%s://%s" (ternary "https" "http" (ne $coordinator.ingress.tlsSecret "")) $coordinator.ingress.host -}}
{{- else if and (or $coordinator.httpRoute.enabled $coordinator.gateway.enabled) $coordinator.httpRoute.hostnames -}}
{{- /* Whether a Gateway elsewhere has a certificate is unknown here; one that faces people has. */}}
{{- $isPlain := and $coordinator.gateway.enabled (eq $coordinator.gateway.tlsSecret "") -}}
{{- printf "%s://%s" (ternary "http" "https" $isPlain) (first $coordinator.httpRoute.hostnames) -}}
{{- end -}}
{{- end -}}

{{/* Where alerts link to. Argument: root. */}}
{{- define "lockstep.coordinator.url" -}}
{{- $inside := printf "%s://%s-coordinator.%s.svc:%d" (include "lockstep.scheme" .) (include "lockstep.fullname" .) (include "lockstep.namespace" .) (int64 .Values.coordinator.port) -}}
{{- coalesce .Values.prometheusRule.coordinatorUrl .Values.coordinator.config.external_url (include "lockstep.coordinator.outside" .) $inside | trimSuffix "/" -}}
{{- end -}}

{{/* What two coordinators cannot share. */}}
{{- define "lockstep.coordinator.check" -}}
{{- if gt (int .Values.coordinator.replicas) 1 -}}
{{- if .Values.coordinator.config.name -}}
{{- fail (printf "coordinator.config.name: got %s, expected '' with coordinator.replicas above 1: each has the name of its pod" .Values.coordinator.config.name) -}}
{{- end -}}
{{- if and .Values.coordinator.persistence.enabled .Values.coordinator.persistence.existingClaim -}}
{{- fail (printf "coordinator.persistence.existingClaim: got %s, expected '' with coordinator.replicas above 1: each has a claim of its own" .Values.coordinator.persistence.existingClaim) -}}
{{- end -}}
{{- end -}}
{{- end -}}
