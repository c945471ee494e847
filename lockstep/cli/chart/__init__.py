"""What of the Helm chart is written by `make generate`: rules, dashboards, services' keys, schema, table of values."""
