"""The example of Alertmanager with receivers on loopback: what is routed where, without PagerDuty, Slack and mail."""

import yaml


def to_webhook(text, url):
    """Return the configuration with a webhook at `url`/NAME in place of what each receiver has; `null` stays empty."""
    document = yaml.safe_load(text)
    del document["templates"]
    document["receivers"] = [
        {"name": own["name"]} | ({"webhook_configs": [{"url": f"{url}/{own['name']}"}]} if len(own) > 1 else {})
        for own in document["receivers"]
    ]
    return yaml.safe_dump(document)


def with_addresses(text, url, templates):
    """Return the configuration with its own receivers, their addresses on loopback and no mail."""
    document = yaml.safe_load(text)
    document["templates"] = [str(templates)]
    for receiver in document["receivers"]:
        receiver.pop("email_configs", None)
        for config in receiver.get("pagerduty_configs", []):
            del config["routing_key_file"]
            config |= {"routing_key": "key", "url": f"{url}/pagerduty"}
        for config in receiver.get("slack_configs", []):
            del config["api_url_file"]
            config["api_url"] = f"{url}/slack"
    return yaml.safe_dump(document)
