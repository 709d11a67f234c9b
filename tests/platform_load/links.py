"""Link people and a server of the load run to its users, and print the webhook's URL."""

from __future__ import annotations

import json
import os
import sys


def main(chats: list[int], server_id: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from django.contrib.auth.models import User

    from linking.models import PlatformLink, PlatformUserLink
    from linking.platforms import registry

    adapter = registry.build_adapter("telegram")
    assert adapter is not None
    users = list(User.objects.filter(username__startswith="bench").order_by("-pk")[: len(chats)])
    PlatformUserLink.objects.bulk_create(
        PlatformUserLink(
            platform="telegram", bot_account=adapter.bot_account, platform_user_id=str(chat), user=user
        )
        for chat, user in zip(chats, users, strict=True)
    )
    PlatformLink.objects.create(
        platform="telegram",
        bot_account=adapter.bot_account,
        server_id=server_id,
        owner=users[-1],
        member_turns_per_hour=10_000,
    )
    print(registry.get_webhook_slug(adapter))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
