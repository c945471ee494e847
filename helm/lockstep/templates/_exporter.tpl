{{/* The exporter's container is the same in both modes; what differs is the volume that it shares with trainers. */}}

{{- define "lockstep.exporter.config" -}}
{{- include "lockstep.brokerConfig" (dict "root" . "service" "exporter") }}
root: {{ .Values.exporter.mountPath }}
http_host: {{ include "lockstep.listenAddress" . | quote }}
http_port: {{ int64 .Values.exporter.port }}
spool_directory: /var/lib/lockstep/spool
{{- include "lockstep.ownConfig" .Values.exporter.config }}
{{- end -}}

{{/* Its group is the trainers': rings are readable by the group, never by all. Argument: root. */}}
{{- define "lockstep.exporter.container" -}}
name: {{ ternary "lockstep-exporter" "exporter" (eq .Values.exporter.mode "sidecar") }}
image: {{ include "lockstep.image" (dict "root" . "image" .Values.exporter.image) }}
imagePullPolicy: {{ .Values.exporter.image.pullPolicy }}
command: [lockstep]
args:
  {{- include "lockstep.args" (dict "root" . "service" "exporter" "extra" .Values.exporter.extraArgs) | nindent 2 }}
env:
  - name: LOCKSTEP_EXPORTER_NODE
    valueFrom:
      fieldRef:
        {{- /* A sidecar is one of several on its node, so it is named by its pod. */}}
        fieldPath: {{ ternary "metadata.name" "spec.nodeName" (eq .Values.exporter.mode "sidecar") }}
  {{- if .Values.broker.auth.nodesSecret }}
  - name: LOCKSTEP_EXPORTER_BROKER_USERNAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  {{- end }}
  {{- /* A pod's host name means nothing outside it, and discovery hands this on to Prometheus. */}}
  {{- if not .Values.exporter.config.advertise_address }}
  - name: LOCKSTEP_EXPORTER_ADVERTISE_ADDRESS
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  {{- end }}
  {{- with .Values.exporter.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.exporter.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: {{ include "lockstep.exporter.portName" . }}, containerPort: {{ int64 .Values.exporter.port }}, protocol: TCP}
{{- with .Values.exporter.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: lockstep-rings
    mountPath: {{ .Values.exporter.mountPath }}
  - name: {{ ternary "lockstep-spool" "spool" (eq .Values.exporter.mode "sidecar") }}
    mountPath: /var/lib/lockstep
{{- end -}}

{{- define "lockstep.exporter.portName" -}}
{{- ternary "lockstep-http" "http" (eq .Values.exporter.mode "sidecar") -}}
{{- end -}}
