{{/* The generated rules with a site's own numbers: files/lockstep.rules.yaml has @@name@@ where alerts/policy.py has a value. */}}

{{- define "lockstep.duration" -}}
{{- $seconds := int64 . -}}
{{- if and (gt $seconds 0) (eq (mod $seconds 60) 0) -}}{{ div $seconds 60 }}m{{- else -}}{{ $seconds }}s{{- end -}}
{{- end -}}

{{- define "lockstep.rules" -}}
{{- $rule := .Values.prometheusRule -}}
{{- $text := .Files.Get "files/lockstep.rules.yaml" -}}
{{- range $key, $value := $rule.thresholds -}}
{{- $text = replace (printf "@@duration.%s@@" $key) (include "lockstep.duration" $value) $text -}}
{{- $text = replace (printf "@@percent.%s@@" $key) (printf "%.0f%%" (mulf 100.0 $value)) $text -}}
{{- $text = replace (printf "@@%s@@" $key) (include "lockstep.number" $value) $text -}}
{{- end -}}
{{- $runbooks := default .Values.coordinator.config.runbook_base_url $rule.runbooksUrl | trimSuffix "/" -}}
{{- $grafana := default .Values.coordinator.config.dashboard_base_url $rule.grafanaUrl | trimSuffix "/" -}}
{{- $absent := dict "runbook_url" (eq $runbooks "") "dashboard_url" (eq $grafana "") -}}
{{- $site := dict "exporter_job" .Values.monitoring.exporterJob "coordinator_job" .Values.monitoring.coordinatorJob "run_labels" $rule.runLabels "runbooks_url" $runbooks "grafana_url" $grafana "coordinator_url" (include "lockstep.coordinator.url" .) -}}
{{- range $key, $value := $site -}}
{{- $text = replace (printf "@@%s@@" $key) $value $text -}}
{{- end -}}
{{- $groups := list -}}
{{- range $group := (fromYaml $text).groups -}}
{{- if not (has $group.name $rule.disabledGroups) -}}
{{- $kept := list -}}
{{- range $one := $group.rules -}}
{{- $own := dict -}}
{{- if $one.alert -}}
{{- $own = default dict (get $rule.alerts $one.alert) -}}
{{- end -}}
{{- if not (or (has (default "" $one.alert) $rule.disabledAlerts) (and (hasKey $own "enabled") (not $own.enabled))) -}}
{{- if $own.severity -}}
{{- $_ := set $one.labels "severity" $own.severity -}}
{{- end -}}
{{- if $own.for -}}
{{- $_ := set $one "for" $own.for -}}
{{- end -}}
{{- if and $one.alert $rule.additionalRuleLabels -}}
{{- $_ := set $one "labels" (merge (dict) $one.labels $rule.additionalRuleLabels) -}}
{{- end -}}
{{- range $annotation, $isAbsent := $absent -}}
{{- if and $one.alert $isAbsent -}}
{{- $_ := unset $one.annotations $annotation -}}
{{- end -}}
{{- end -}}
{{- $kept = append $kept $one -}}
{{- end -}}
{{- end -}}
{{- $_ := set $group "rules" $kept -}}
{{- $groups = append $groups $group -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end -}}
