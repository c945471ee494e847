{{/* The selectors of the webhook and of the policy's bindings: by the label of the namespace or of the pod; a pod meets one of
     the two. Argument: root, by. */}}
{{- define "lockstep.injection.selectors" -}}
{{- /* In mode sidecar only the namespaces that have its configuration. */}}
{{- $places := list -}}
{{- if eq .root.Values.exporter.mode "sidecar" -}}
{{- $places = (include "lockstep.sidecarNamespaces" .root | fromJson).all -}}
{{- end -}}
namespaceSelector:
  matchExpressions:
    - {key: lockstep-injection, operator: {{ ternary "In" "NotIn" (eq .by "namespace") }}, values: [enabled]}
    {{- with $places }}
    - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
    {{- end }}
objectSelector:
  matchExpressions:
    - {key: lockstep-injection, operator: {{ ternary "NotIn" "In" (eq .by "namespace") }}, values: [{{ ternary "disabled" "enabled" (eq .by "namespace") }}]}
{{- end -}}

{{/* A value as a literal of CEL. Kubernetes refuses literals of mixed types, so that each element is made dynamic. */}}
{{- define "lockstep.cel" -}}
{{- if kindIs "map" . -}}
{{- $members := list -}}
{{- range $key, $value := . -}}
{{- $members = append $members (printf "%s: dyn(%s)" (toJson $key) (include "lockstep.cel" $value)) -}}
{{- end -}}
{ {{- join ", " $members -}} }
{{- else if kindIs "slice" . -}}
{{- $members := list -}}
{{- range $value := . -}}
{{- $members = append $members (printf "dyn(%s)" (include "lockstep.cel" $value)) -}}
{{- end -}}
[ {{- join ", " $members -}} ]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* Whether container i of the pod mounts something of its own at a path. Argument: the path. */}}
{{- define "lockstep.cel.hasMount" -}}
(has(object.spec.containers[i].volumeMounts) && object.spec.containers[i].volumeMounts.exists(m, m.mountPath == {{ toJson . }}))
{{- end -}}

{{/* Whether container i of the pod has a variable of its own. Argument: its name. */}}
{{- define "lockstep.cel.hasVariable" -}}
(has(object.spec.containers[i].env) && object.spec.containers[i].env.exists(e, e.name == {{ toJson . }}))
{{- end -}}

{{/* The operations of a policy, as lists of {path, value}: one variable of CEL for each subject, for parsers limit the depth of an
     expression. `add` at a member sets it, in a list at `-` appends and at a number inserts (RFC 6902): what a pod has is kept. */}}
{{- define "lockstep.cel.add" -}}
{"path": dyn({{ .path }}), "value": dyn({{ .value }})}
{{- end -}}

{{/* The path of a member of container i. Argument: the member. */}}
{{- define "lockstep.cel.ofContainer" -}}
"/spec/containers/" + string(i) + "/{{ . }}"
{{- end -}}

{{/* Argument: root. PYTHONPATH of the manifest comes first: it writes the whole list. */}}
{{- define "lockstep.injection.environment" -}}
{{- $site := include "lockstep.join.wrapper" . | dir -}}
{{- $env := include "lockstep.cel.ofContainer" "env" -}}
{{- $append := include "lockstep.cel.ofContainer" "env/-" -}}
variables.prefixed.map(i, {"path": dyn({{ $env }}), "value": dyn(
  object.spec.containers[i].env.map(e, e.name != "PYTHONPATH" || has(e.valueFrom) ? e : {"name": dyn("PYTHONPATH"), "value":
    dyn(has(e.value) && e.value != "" ? {{ printf "%s:" $site | toJson }} + e.value : {{ toJson $site }})}))})
+ variables.training.filter(i, !has(object.spec.containers[i].env)).map(i, {{ include "lockstep.cel.add" (dict "path" $env "value" "[]") }})
{{- range (index (fromYaml (include "lockstep.join.pod" .)).spec.containers 0).env }}
{{- $value := printf "{%q: dyn(%s), %q: dyn(%s)}" "name" (toJson .name) "value" (ternary "variables.runs[0]" (toJson .value) (eq .name "LOCKSTEP_RUN")) }}
+ variables.training.filter(i, !{{ include "lockstep.cel.hasVariable" .name }})
  .map(i, {{ include "lockstep.cel.add" (dict "path" $append "value" $value) }})
{{- end }}
+ variables.replaced.map(i, {{ include "lockstep.cel.add" (dict "path" $append "value" (include "lockstep.cel" (dict "name" "PYTHONPATH" "value" $site))) }})
{{- end -}}

{{/* Argument: root. */}}
{{- define "lockstep.injection.mounts" -}}
{{- $trainer := index (fromYaml (include "lockstep.join.pod" .)).spec.containers 0 -}}
variables.training.filter(i, !has(object.spec.containers[i].volumeMounts))
  .map(i, {{ include "lockstep.cel.add" (dict "path" (include "lockstep.cel.ofContainer" "volumeMounts") "value" "[]") }})
{{- range $trainer.volumeMounts }}
+ variables.training.filter(i, !{{ include "lockstep.cel.hasMount" .mountPath }})
  .map(i, {{ include "lockstep.cel.add" (dict "path" (include "lockstep.cel.ofContainer" "volumeMounts/-") "value" (include "lockstep.cel" .)) }})
{{- end }}
{{- range reverse $trainer.command }}
+ variables.wrapped.map(i, {{ include "lockstep.cel.add" (dict "path" (include "lockstep.cel.ofContainer" "command/0") "value" (toJson .)) }})
{{- end }}
{{- end -}}

{{/* A volume is needed by the init containers, or by a container that trains and mounts nothing of its own there. Argument: root. */}}
{{- define "lockstep.injection.volumes" -}}
{{- $spec := (fromYaml (include "lockstep.join.pod" .)).spec -}}
{{- $inits := list -}}
{{- range $spec.initContainers }}{{ range .volumeMounts }}{{ $inits = append $inits .name }}{{ end }}{{ end -}}
{{- include "lockstep.injection.member" (dict "owner" "object.spec" "path" "/spec" "name" "volumes" "value" list) -}}
{{- range $volume := $spec.volumes }}
{{- $needed := list }}
{{- range (index $spec.containers 0).volumeMounts }}
{{- if eq .name $volume.name }}
{{- $needed = append $needed (printf "variables.training.exists(i, !%s)" (include "lockstep.cel.hasMount" .mountPath)) }}
{{- end }}
{{- end }}
+ ({{ toJson $volume.name }} in variables.volumes{{ if not (has $volume.name $inits) }} || !({{ join " || " $needed }}){{ end }} ? [] :
  [{{ include "lockstep.cel.add" (dict "path" "\"/spec/volumes/-\"" "value" (include "lockstep.cel" $volume)) }}])
{{- end }}
{{- end -}}

{{/* Argument: root. */}}
{{- define "lockstep.injection.initContainers" -}}
{{- include "lockstep.injection.member" (dict "owner" "object.spec" "path" "/spec" "name" "initContainers" "value" list) -}}
{{- range reverse (fromYaml (include "lockstep.join.pod" .)).spec.initContainers }}
+ [{{ include "lockstep.cel.add" (dict "path" "\"/spec/initContainers/0\"" "value" (include "lockstep.cel" .)) }}]
{{- end }}
{{- end -}}

{{/* Other members of the pod, and its labels. Argument: root. */}}
{{- define "lockstep.injection.members" -}}
{{- $part := fromYaml (include "lockstep.join.pod" .) -}}
{{- $members := list "[]" -}}
{{- range $name, $value := omit $part.spec "containers" "initContainers" "volumes" -}}
{{- $members = append $members (include "lockstep.injection.member" (dict "owner" "object.spec" "path" "/spec" "name" $name "value" $value)) -}}
{{- end -}}
{{- with $part.metadata -}}
{{- $members = append $members (include "lockstep.injection.member" (dict "owner" "object.metadata" "path" "/metadata" "name" "labels" "value" .labels)) -}}
{{- end -}}
{{ join "\n+ " $members }}
{{- end -}}

{{/* Lists are added to, mappings get the members that they lack, and what the pod has decided stays.
     Argument: owner, an expression; path, its JSON Pointer; name of the member; value. */}}
{{- define "lockstep.injection.member" -}}
{{- $own := printf "%s.%s" .owner .name -}}
{{- $path := printf "%s/%s" .path (.name | replace "~" "~0" | replace "/" "~1") -}}
{{- $has := printf "has(%s) && has(%s)" .owner $own -}}
{{- if not (regexMatch "^[A-Za-z_][A-Za-z0-9_]*$" .name) -}}
{{- /* A label's key is no identifier. */}}
{{- $own = printf "%s[%s]" .owner (toJson .name) -}}
{{- $has = printf "has(%s) && %s in %s" .owner (toJson .name) .owner -}}
{{- end -}}
{{- $empty := ternary "{}" (ternary "[]" (toJson .value) (kindIs "slice" .value)) (kindIs "map" .value) -}}
({{ $has }} ? [] : [{{ include "lockstep.cel.add" (dict "path" (toJson $path) "value" $empty) }}])
{{- if kindIs "map" .value }}
{{- range $name, $value := .value }}
+ {{ include "lockstep.injection.member" (dict "owner" $own "path" $path "name" $name "value" $value) }}
{{- end }}
{{- else if kindIs "slice" .value }}
{{- range .value }}
+ ({{ $has }} && {{ include "lockstep.cel" . }} in {{ $own }} ? [] :
  [{{ include "lockstep.cel.add" (dict "path" (printf "%s/-" $path | toJson) "value" (include "lockstep.cel" .)) }}])
{{- end }}
{{- end }}
{{- end -}}
