"""What a server's members may do at its owner's cost: the only writer of LinkUsage and CapReservation (L8).

A message in a server: `admit(link, said)` refuses it (MessageRefused) or sets its share aside; then the conversation is
found, `attach(run_id, session_id)` says where the message went, and it is submitted with the permissions
`guest_profile(link.tools)`. Refused there, `release(run_id)` gives the share back. The turn's ending settles it by itself.
"""

from linking.caps.admitting import Said, admit, foresee
from linking.caps.guests import ENABLEABLE, GUEST_TOOLS, guest_profile
from linking.caps.notices import may_greet, may_prompt_server, may_tell
from linking.caps.reserving import attach, purge, release, settle, settle_forgotten

__all__ = [
    "ENABLEABLE",
    "GUEST_TOOLS",
    "Said",
    "admit",
    "attach",
    "foresee",
    "guest_profile",
    "may_greet",
    "may_prompt_server",
    "may_tell",
    "purge",
    "release",
    "settle",
    "settle_forgotten",
]
