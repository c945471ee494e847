"""A preview of the dashboards without Grafana: `ask` queries, `units`, `chart` and `panel` draw, `page` combines."""
