"""Grafana dashboards as Python; `make generate` calls `catalogue.render`."""
