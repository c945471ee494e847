{{/* What a training pod needs to join: in the ConfigMap `join`, and what the policy of injection.mode adds. */}}

{{/* The agent, copied into a volume of the training pod: nothing is built into the training image. */}}
{{- define "lockstep.join.agentContainer" -}}
name: lockstep-agent
image: {{ include "lockstep.image" (dict "root" . "image" .Values.agent.image) }}
imagePullPolicy: {{ .Values.agent.image.pullPolicy }}
args: [/opt/lockstep]
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 .Values.exporter.user }}
  {{- include "lockstep.containerSecurityContext" . | nindent 2 }}
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.agent.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: lockstep-agent, mountPath: /opt/lockstep}
{{- end -}}

{{/* The script that starts a training with the agent, in the container. */}}
{{- define "lockstep.join.wrapper" -}}
/opt/lockstep/lockstep/agent/site/start.sh
{{- end -}}

{{- define "lockstep.join.trainer" -}}
# These two words, then your own command: the agent goes before the image's own PYTHONPATH.
command: [sh, {{ include "lockstep.join.wrapper" . }}]
env:
  - {name: LOCKSTEP_RUN, value: my-run}
  - {name: LOCKSTEP_DIR, value: {{ .Values.exporter.mountPath }}}
  - {name: LOCKSTEP_EXPORTER_UID, value: {{ .Values.exporter.user | toString | quote }}}
volumeMounts:
  - {name: lockstep-rings, mountPath: {{ .Values.exporter.mountPath }}}
  - {name: lockstep-agent, mountPath: /opt/lockstep, readOnly: true}
  - {name: dshm, mountPath: /dev/shm}
{{- end -}}

{{/* The part of a pod, to be copied into its manifest. Argument: root. */}}
{{- define "lockstep.join.pod" -}}
{{- $exporter := .Values.exporter -}}
{{- $isSidecar := eq $exporter.mode "sidecar" -}}
{{- if $isSidecar }}
metadata:
  labels:
    lockstep-exporter: {{ include "lockstep.fullname" . }}
{{- end }}
spec:
  {{- if and $isSidecar $exporter.hostWatch.enabled }}
  # Shows the ranks' processes to the exporter, for its host watch.
  shareProcessNamespace: true
  {{- end }}
  {{- with include "lockstep.imagePullSecrets" . | trim }}
  # Secrets of these names in the namespace of training.
  {{- . | nindent 2 }}
  {{- end }}
  {{- with int64 $exporter.sharedGroup }}
  # The group by which the exporter reads rings, for trainers that are not root.
  securityContext:
    supplementalGroups: [{{ . }}]
  {{- end }}
  initContainers:
    - {{- include "lockstep.join.agentContainer" . | nindent 6 }}
    {{- if $isSidecar }}
    # An init container that stays (Kubernetes 1.29): it is there before training and does not keep a job from ending.
    - {{- include "lockstep.exporter.container" . | nindent 6 }}
        {{- include "lockstep.mounts" (dict "root" . "service" "exporter") | replace "name: " "name: lockstep-" | nindent 8 }}
      restartPolicy: Always
      securityContext:
        {{- include "lockstep.podSecurityContext" (dict "user" (int64 $exporter.user) "group" (int64 $exporter.sharedGroup)) | nindent 8 }}
        {{- include "lockstep.containerSecurityContext" . | nindent 8 }}
      {{- if not (and .Values.webConfig.enabled .Values.webConfig.basicAuth) }}
      startupProbe:
        httpGet:
          path: /-/healthy
          port: lockstep-http
          scheme: {{ ternary "HTTPS" "HTTP" (and .Values.webConfig.enabled .Values.webConfig.tls) }}
      {{- end }}
    {{- end }}
  containers:
    - name: trainer  # yours; this is added to it
      {{- include "lockstep.join.trainer" . | nindent 6 }}
  volumes:
    - name: lockstep-rings
      {{- if $isSidecar }}
      emptyDir:
        medium: Memory
        sizeLimit: {{ $exporter.sidecar.sizeLimit }}
      {{- else }}
      hostPath:
        path: {{ $exporter.hostPath.path }}
        type: Directory
      {{- end }}
    - name: lockstep-agent
      emptyDir: {}
    - name: dshm  # what NCCL and the DataLoader's workers share; 64 MiB without it
      emptyDir:
        medium: Memory
        sizeLimit: {{ .Values.agent.sharedMemorySize }}
    {{- if $isSidecar }}
    - name: lockstep-spool
      emptyDir:
        sizeLimit: {{ $exporter.spoolSizeLimit }}
    {{- include "lockstep.volumes" (dict "root" . "service" "exporter") | replace "- name: " "- name: lockstep-" | replace "0440" "0444" | nindent 4 }}
    {{- end }}
{{- end -}}
