"""Configure the linking app and connect its receivers to signals."""

from __future__ import annotations

from django.apps import AppConfig


class LinkingConfig(AppConfig):
    name = "linking"
    verbose_name = "Chat platforms and bots"

    def ready(self) -> None:
        from copilot import signals as copilot_signals
        from linking import checks, selectors, signals, tasks  # noqa: F401 - checks register themselves
        from linking.caps import reservations
        from linking.links import services as links
        from linking.webhook_deliveries import outbox

        for signal, receiver in (
            (copilot_signals.turn_started, tasks.enqueue_turn_delivery),
            (copilot_signals.turn_awaits_person, tasks.enqueue_turn_delivery),
            (copilot_signals.turn_ended, tasks.enqueue_turn_delivery),
            (copilot_signals.turn_ended, reservations.settle_turn),
            (copilot_signals.turn_awaits_person, outbox.record_deliveries),
            (copilot_signals.turn_ended, outbox.record_deliveries),
            (copilot_signals.account_exporting, selectors.export_links),
            (copilot_signals.account_closing, links.revoke_account_links),
            (copilot_signals.account_purging, links.erase_account_data),
            (signals.link_confirmed, tasks.enqueue_link_notification),
            (signals.deliveries_recorded, tasks.enqueue_deliveries),
        ):
            signal.connect(receiver, dispatch_uid=f"{receiver.__module__}.{receiver.__name__}")
