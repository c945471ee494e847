"""Recording rules, alerts, runbooks and configuration examples; `rules.render` is what `make generate` calls."""
