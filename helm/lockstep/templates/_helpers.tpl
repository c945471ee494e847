{{/* Names, labels and the parts that several workloads share. Nothing here knows a mode of the exporter. */}}

{{- define "lockstep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lockstep.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "lockstep.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lockstep.name" .) | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Never the version: selectors cannot change. Argument: dict root, component. */}}
{{- define "lockstep.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lockstep.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "lockstep.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "lockstep.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: lockstep
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Without versions: an upgrade of the chart alone replaces no pod. */}}
{{- define "lockstep.podLabels" -}}
{{ include "lockstep.selectorLabels" . }}
app.kubernetes.io/part-of: lockstep
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Head of every object. Argument: dict root, component, name; namespace, labels, annotations where they differ. */}}
{{- define "lockstep.metadata" -}}
name: {{ .name }}
namespace: {{ default (include "lockstep.namespace" .root) .namespace }}
labels:
  {{- include "lockstep.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "lockstep.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "lockstep.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Argument: dict root, image. A digest wins over a tag. */}}
{{- define "lockstep.image" -}}
{{- $registry := default .root.Values.global.imageRegistry .image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.imagePullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The restricted profile; what a mode needs beyond it stands in that mode's template with its reason. */}}
{{- define "lockstep.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "lockstep.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .group }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Where pods go, of one workload's values. */}}
{{- define "lockstep.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* HTTP of both services: by name and password a probe cannot ask, so it only connects. Argument: dict root, path. */}}
{{- define "lockstep.probeAction" -}}
{{- $web := .root.Values.webConfig -}}
{{- if and $web.enabled $web.basicAuth }}
tcpSocket:
  port: http
{{- else }}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (and $web.enabled $web.tls) }}
{{- end }}
{{- end -}}

{{- define "lockstep.scheme" -}}
{{- ternary "https" "http" (and .Values.webConfig.enabled .Values.webConfig.tls) -}}
{{- end -}}

{{- define "lockstep.probes" -}}
{{- range $name, $path := dict "startupProbe" "/-/healthy" "livenessProbe" "/-/healthy" "readinessProbe" "/-/ready" }}
{{- with index $.probes $name }}
{{ $name }}:
  {{- include "lockstep.probeAction" (dict "root" $.root "path" (ternary $path "/-/healthy" (or (ne $name "readinessProbe") $.readyIsReady))) | trim | nindent 2 }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "lockstep.webConfigName" -}}
{{- default (printf "%s-web-config" (include "lockstep.fullname" .)) .Values.webConfig.existingSecret -}}
{{- end -}}

{{/* Arguments of both services that every mode has. Argument: dict root, service, extra. */}}
{{- define "lockstep.args" -}}
- {{ .service }}
- --config
- /etc/lockstep/{{ .service }}.yaml
{{- if .root.Values.webConfig.enabled }}
- --web.config.file=/etc/lockstep-web/web-config.yml
{{- end }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Mounts of both services: configuration, what the broker asks for, web configuration, /tmp. Argument: dict root, service. */}}
{{- define "lockstep.mounts" -}}
- name: config
  mountPath: /etc/lockstep
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if include "lockstep.broker.hasPassword" .root }}
- name: broker-password
  {{- if and (eq .service "exporter") .root.Values.broker.auth.nodesSecret }}
  {{- /* Of all nodes' passwords the container sees its own. */}}
  mountPath: /etc/lockstep-broker/password
  subPathExpr: $(LOCKSTEP_EXPORTER_NODE)
  {{- else }}
  mountPath: /etc/lockstep-broker
  {{- end }}
  readOnly: true
{{- end }}
{{- if include "lockstep.broker.hasAuthority" .root }}
- name: broker-ca
  mountPath: /etc/lockstep-broker-ca
  readOnly: true
{{- end }}
{{- if include "lockstep.broker.clientSecret" . }}
- name: broker-client
  mountPath: /etc/lockstep-broker-client
  readOnly: true
{{- end }}
{{- if .root.Values.webConfig.enabled }}
- name: web-config
  mountPath: /etc/lockstep-web
  readOnly: true
{{- if .root.Values.webConfig.certificateSecret }}
- name: web-tls
  mountPath: /etc/lockstep-web-tls
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{/* Argument: dict root, service. Only this service's password is mounted, and only the authority's public part. */}}
{{- define "lockstep.volumes" -}}
- name: config
  configMap:
    name: {{ include "lockstep.fullname" .root }}-{{ .service }}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- if include "lockstep.broker.hasPassword" .root }}
- name: broker-password
  secret:
    {{- if and (eq .service "exporter") .root.Values.broker.auth.nodesSecret }}
    secretName: {{ .root.Values.broker.auth.nodesSecret }}
    defaultMode: 0440
    {{- else }}
    secretName: {{ include "lockstep.broker.authSecret" .root }}
    defaultMode: 0440
    items:
      - key: {{ .service }}-password
        path: password
    {{- end }}
{{- end }}
{{- if include "lockstep.broker.hasAuthority" .root }}
- name: broker-ca
  secret:
    secretName: {{ include "lockstep.broker.authoritySecret" .root }}
    defaultMode: 0444
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- with include "lockstep.broker.clientSecret" . }}
- name: broker-client
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
{{- end }}
{{- if .root.Values.webConfig.enabled }}
- name: web-config
  secret:
    secretName: {{ include "lockstep.webConfigName" .root }}
    defaultMode: 0440
{{- with .root.Values.webConfig.certificateSecret }}
- name: web-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}

{{/* The keys `broker_*` of a service's configuration. Argument: dict root, service. */}}
{{- define "lockstep.brokerConfig" -}}
broker_host: {{ include "lockstep.broker.host" .root | quote }}
broker_port: {{ include "lockstep.broker.port" .root }}
{{- if include "lockstep.broker.hasPassword" .root }}
{{- if not (and (eq .service "exporter") .root.Values.broker.auth.nodesSecret) }}
broker_username: {{ index .root.Values.broker.auth (printf "%sUsername" .service) | quote }}
{{- end }}
broker_password_file: /etc/lockstep-broker/password
{{- end }}
{{- if include "lockstep.broker.hasAuthority" .root }}
broker_ca_file: /etc/lockstep-broker-ca/ca.crt
{{- end }}
{{- if include "lockstep.broker.clientSecret" . }}
broker_cert_file: /etc/lockstep-broker-client/tls.crt
broker_key_file: /etc/lockstep-broker-client/tls.key
{{- end }}
{{- end -}}

{{/* `key: value` lines of a service's own keys; numbers are written without exponents, which YAML 1.1 reads as text. */}}
{{- define "lockstep.ownConfig" -}}
{{- range $key, $value := . }}
{{ $key }}: {{ include "lockstep.number" $value }}
{{- end }}
{{- end -}}

{{- define "lockstep.number" -}}
{{- if kindIs "string" . -}}{{ . | quote }}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else if kindIs "slice" . -}}{{ toJson . }}
{{- else if eq (float64 .) (floor .) -}}{{ int64 . }}
{{- else if contains "e" (toString .) -}}{{ printf "%.12f" (float64 .) }}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}

{{/* The kubelet asks a pod at its first address; at `::` the services receive no IPv4. */}}
{{- define "lockstep.listenAddress" -}}
{{- ternary "::" "0.0.0.0" .Values.ipv6 -}}
{{- end -}}

{{- define "lockstep.metricsFrom" -}}
{{- with .from }}
from:
  {{- toYaml . | nindent 2 }}
  - podSelector:
      matchLabels:
        {{- include "lockstep.selectorLabels" (dict "root" $.root "component" "test") | nindent 8 }}
{{- end }}
{{- end -}}

{{- define "lockstep.egressNames" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{/* Way out of both services: names and the broker, nothing else. */}}
{{- define "lockstep.egress" -}}
{{ include "lockstep.egressNames" . }}
- ports:
    - {port: {{ include "lockstep.broker.port" . }}, protocol: TCP}
  {{- if .Values.broker.mosquitto.enabled }}
  to:
    - podSelector:
        matchLabels:
          {{- include "lockstep.selectorLabels" (dict "root" . "component" "mosquitto") | nindent 10 }}
  {{- end }}
{{- end -}}

{{- define "lockstep.scrape" -}}
{{- $seconds := "^[0-9]+s$" -}}
{{- if and (regexMatch $seconds .interval) (regexMatch $seconds .scrapeTimeout) (gt (trimSuffix "s" .scrapeTimeout | int) (trimSuffix "s" .interval | int)) -}}
{{- fail (printf "scrapeTimeout: got %s, expected at most the interval, %s: the operator would leave the monitor out" .scrapeTimeout .interval) -}}
{{- end -}}
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
honorLabels: {{ .honorLabels }}
relabelings:
  - targetLabel: job
    replacement: {{ .job }}
  {{- with .relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .basicAuth }}
basicAuth:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "lockstep.scrapeLimits" -}}
{{- range $key := list "sampleLimit" "targetLimit" "labelLimit" "labelValueLengthLimit" }}
{{- with index $ $key }}
{{ $key }}: {{ int64 . }}
{{- end }}
{{- end }}
{{- end -}}
