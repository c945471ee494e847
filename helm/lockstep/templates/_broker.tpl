{{/* Where the broker is and what it takes to speak to it, whichever of the two it is. */}}

{{- define "lockstep.broker.check" -}}
{{- if and .Values.broker.mosquitto.enabled .Values.broker.external.host -}}
{{- fail "broker: got mosquitto.enabled and external.host, expected one of them" -}}
{{- end -}}
{{- if and (not .Values.broker.mosquitto.enabled) (not .Values.broker.external.host) -}}
{{- fail "broker.external.host: got '', expected a host name where broker.mosquitto.enabled is false" -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.broker.host" -}}
{{- if .Values.broker.mosquitto.enabled -}}
{{- printf "%s-mosquitto.%s.svc" (include "lockstep.fullname" .) (include "lockstep.namespace" .) -}}
{{- else -}}
{{- .Values.broker.external.host -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.broker.port" -}}
{{- if .Values.broker.mosquitto.enabled -}}
{{- default (ternary 8883 1883 .Values.broker.tls.enabled) .Values.broker.mosquitto.port -}}
{{- else -}}
{{- default (ternary 8883 1883 .Values.broker.tls.enabled) .Values.broker.external.port -}}
{{- end -}}
{{- end -}}

{{/* Not empty where the services sign in: always at our own broker, at another one where a secret is named. */}}
{{- define "lockstep.broker.hasPassword" -}}
{{- if or .Values.broker.mosquitto.enabled .Values.broker.auth.existingSecret -}}yes{{- end -}}
{{- end -}}

{{- define "lockstep.broker.hasAuthority" -}}
{{- if .Values.broker.tls.enabled -}}yes{{- end -}}
{{- end -}}

{{- define "lockstep.broker.authSecret" -}}
{{- default (printf "%s-broker-auth" (include "lockstep.fullname" .)) .Values.broker.auth.existingSecret -}}
{{- end -}}

{{/* Of our own making: a secret with the authority alone, so that no trainer's namespace gets the broker's key. */}}
{{- define "lockstep.broker.authoritySecret" -}}
{{- if .Values.broker.tls.existingAuthoritySecret -}}
{{- .Values.broker.tls.existingAuthoritySecret -}}
{{- else if .Values.broker.tls.existingSecret -}}
{{- .Values.broker.tls.existingSecret -}}
{{- else -}}
{{- include "lockstep.fullname" . }}-broker-ca
{{- end -}}
{{- end -}}

{{- define "lockstep.broker.certificateSecret" -}}
{{- default (printf "%s-broker-tls" (include "lockstep.fullname" .)) .Values.broker.tls.existingSecret -}}
{{- end -}}

{{/* Namespaces that need what a sidecar mounts, beside our own. JSON list in an object. */}}
{{- define "lockstep.sidecarNamespaces" -}}
{{- $all := list (include "lockstep.namespace" .) -}}
{{- if and .Values.exporter.enabled (eq .Values.exporter.mode "sidecar") -}}
{{- $all = concat $all .Values.exporter.sidecar.namespaces | uniq -}}
{{- end -}}
{{- dict "all" $all | toJson -}}
{{- end -}}
