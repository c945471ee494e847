"""Generates parts of the Helm chart (`make generate`): rules, dashboards, services' keys, schema, table of values."""
