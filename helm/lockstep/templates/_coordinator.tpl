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
{{- include "lockstep.ownConfig" $coordinator.config }}
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
