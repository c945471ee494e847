{{/* Where the broker is and what it takes to speak to it, whichever of the two it is. */}}

{{- define "lockstep.broker.check" -}}
{{- if and .Values.broker.mosquitto.enabled .Values.broker.external.host -}}
{{- fail "broker: got mosquitto.enabled and external.host, expected one of them" -}}
{{- end -}}
{{- if and (not .Values.broker.mosquitto.enabled) (not .Values.broker.external.host) -}}
{{- fail "broker.external.host: got '', expected a host name where broker.mosquitto.enabled is false" -}}
{{- end -}}
{{- if and (not .Values.broker.mosquitto.enabled) .Values.broker.tls.enabled (not (or .Values.broker.tls.existingAuthoritySecret .Values.broker.tls.existingSecret)) -}}
{{- fail "broker.tls.existingAuthoritySecret: got '', expected a secret with the authority of broker.external.host, or broker.tls.enabled false" -}}
{{- end -}}
{{- if and (not .Values.broker.tls.enabled) (or .Values.broker.clientCertificate.exporterSecret .Values.broker.clientCertificate.coordinatorSecret) -}}
{{- fail "broker.tls.enabled: got false, expected true, because a client certificate is set" -}}
{{- end -}}
{{- if and .Values.broker.auth.nodesSecret (ne .Values.exporter.mode "daemonset") -}}
{{- fail (printf "exporter.mode: got %s, expected daemonset, because broker.auth.nodesSecret is set" .Values.exporter.mode) -}}
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
{{- if or .Values.broker.mosquitto.enabled .Values.broker.auth.existingSecret .Values.broker.auth.nodesSecret -}}yes{{- end -}}
{{- end -}}

{{- define "lockstep.broker.hasAuthority" -}}
{{- if .Values.broker.tls.enabled -}}yes{{- end -}}
{{- end -}}

{{/* The secret with a service's client certificate, or nothing. Argument: dict root, service. */}}
{{- define "lockstep.broker.clientSecret" -}}
{{- index .root.Values.broker.clientCertificate (printf "%sSecret" .service) -}}
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

{{/* Namespaces that need what a sidecar mounts, in addition to our own. JSON list in an object. */}}
{{- define "lockstep.sidecarNamespaces" -}}
{{- $all := list (include "lockstep.namespace" .) -}}
{{- if and .Values.exporter.enabled (eq .Values.exporter.mode "sidecar") -}}
{{- $all = concat $all .Values.exporter.sidecar.namespaces | uniq -}}
{{- end -}}
{{- dict "all" $all | toJson -}}
{{- end -}}

{{/* What mosquitto reads: a change of either is a new pod. */}}
{{- define "lockstep.mosquitto.config" -}}
listener {{ include "lockstep.broker.port" . }}
allow_anonymous false
password_file /mosquitto/auth/passwd
acl_file /mosquitto/config/acl
{{- if .Values.broker.tls.enabled }}
cafile /mosquitto/certs/ca.crt
certfile /mosquitto/certs/tls.crt
keyfile /mosquitto/certs/tls.key
tls_version tlsv1.2
{{- end }}
persistence false
log_dest stdout
connection_messages {{ .Values.broker.mosquitto.logConnections }}
# The largest message of ours is 8 MiB; larger ones are refused at once, by the client itself.
max_packet_size {{ int64 .Values.broker.mosquitto.maxPacketBytes }}
# Memory for each subscriber, also for a coordinator that stands still: the queue, and twice what is under way to it. What
# is beyond is dropped in silence. Coordinators grant their nodes windows that fill half of it, however many nodes there are.
max_queued_messages 100000
max_queued_bytes 268435456
# Under way are 64 messages at most, which subscribers ask for; without this line each of them might have 8 MiB.
max_inflight_bytes 16777216
# That one publisher may have under way without an acknowledgement: the same 64.
max_inflight_messages 64
{{- with .Values.broker.mosquitto.extraConfig }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Both files are written by `make generate`. */}}
{{- define "lockstep.mosquitto.rules" -}}
{{- $auth := .Values.broker.auth -}}
{{- $file := ternary "files/mosquitto.acl" "files/mosquitto-shared.acl" (ne $auth.nodesSecret "") -}}
{{- .Files.Get $file | replace "user lockstep-exporter" (printf "user %s" $auth.exporterUsername) | replace "user lockstep-coordinator" (printf "user %s" $auth.coordinatorUsername) | trim -}}
{{- end -}}
