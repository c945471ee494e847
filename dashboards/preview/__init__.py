"""A preview of the dashboards without Grafana: `ask` the panels' queries, `units`, `chart` and `panel` draw, `page`."""
