"""Note on each turn who pays for it, where it came from and why it waits, and decide in one place which turns may run.

A user's turns run at most so many at once as the plan says, and those from one network address so many as the
installation says. The function below decides that inside the statement that claims turns: no other round trip is made,
and the advisory locks make workers of all processes decide one after another for the same user.
"""

from __future__ import annotations

from django.db import migrations, models

# Locks are taken for all users first, in their order, then for all addresses: no two claims wait for each other.
# A query inside a volatile function sees what was committed before that query: after a lock was waited for, the count
# includes what its former holder has claimed.
_FUNCTION = """
CREATE OR REPLACE FUNCTION copilot_seat_turns(asked uuid[], per_address integer)
RETURNS TABLE (seated uuid, verdict text) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    one record;
    seats integer;
    busy integer;
    unfinished integer;
    throttled integer;
    by_address boolean := false;
    line uuid[];
    going uuid[] := ARRAY[]::uuid[];
    waking uuid[] := ARRAY[]::uuid[];
    crowded uuid[] := ARRAY[]::uuid[];
BEGIN
    FOR one IN
        SELECT CASE WHEN t.parent_id IS NULL THEN t.payer_id END AS payer, array_agg(t.id) AS ids,
               bool_or(t.address IS NOT NULL) AS came_from_outside
        FROM copilot_turn t WHERE t.id = ANY(asked) GROUP BY 1 ORDER BY 1 NULLS FIRST
    LOOP
        by_address := by_address OR one.came_from_outside;
        seats := CASE WHEN one.payer IS NULL THEN 0 ELSE billing_turns_at_once(one.payer) END;
        IF seats = 0 THEN
            going := going || one.ids;
            CONTINUE;
        END IF;
        PERFORM pg_advisory_xact_lock(1346917461, one.payer);
        SELECT count(*), count(*) FILTER (WHERE t.status = 'running'),
               count(*) FILTER (WHERE t.status = 'queued' AND t.throttle <> '')
        INTO unfinished, busy, throttled FROM copilot_turn t
        WHERE t.payer_id = one.payer AND t.parent_id IS NULL AND t.status IN ('queued', 'running');
        IF unfinished <= seats AND throttled = 0 THEN
            going := going || one.ids;
            CONTINUE;
        END IF;
        line := ARRAY(SELECT t.id FROM copilot_turn t
                      WHERE t.payer_id = one.payer AND t.parent_id IS NULL AND t.status = 'queued'
                      ORDER BY t.created_at, t.id LIMIT greatest(seats - busy, 0));
        going := going || ARRAY(SELECT unnest(one.ids) INTERSECT SELECT unnest(line));
        waking := waking || ARRAY(SELECT t.id FROM copilot_turn t
                                  WHERE t.id = ANY(line) AND t.id <> ALL(one.ids) AND t.throttle <> '');
    END LOOP;
    IF by_address AND per_address > 0 THEN
        FOR one IN
            SELECT t.address, array_agg(t.id ORDER BY t.created_at, t.id) AS ids FROM copilot_turn t
            WHERE t.id = ANY(going) AND t.address IS NOT NULL AND t.parent_id IS NULL GROUP BY 1 ORDER BY 1
        LOOP
            PERFORM pg_advisory_xact_lock(1346917441, hashint8(one.address));
            SELECT count(*) INTO busy FROM copilot_turn t
            WHERE t.address = one.address AND t.parent_id IS NULL AND t.status = 'running';
            crowded := crowded || one.ids[greatest(per_address - busy, 0) + 1:];
        END LOOP;
    END IF;
    FOREACH seated IN ARRAY going LOOP
        verdict := 'go';
        IF seated <> ALL(crowded) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    FOREACH seated IN ARRAY waking LOOP
        verdict := 'wake';
        RETURN NEXT;
    END LOOP;
    IF cardinality(going) = cardinality(asked) AND cardinality(crowded) = 0 THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE copilot_turn t
        SET throttle = CASE WHEN t.id = ANY(crowded) THEN 'address' ELSE 'user' END
        WHERE t.id = ANY(asked) AND (t.id <> ALL(going) OR t.id = ANY(crowded))
          AND t.status = 'queued' AND t.throttle = ''
        RETURNING t.id, 'wait';
END
$$
"""

_UNFINISHED_ROOTS = models.Q(parent=None, status__in=["queued", "running"])


class Migration(migrations.Migration):
    dependencies = [("copilot", "0028_goal_permissions"), ("billing", "0008_turns_at_once")]

    operations = [
        migrations.AddField(
            model_name="turn",
            name="payer_id",
            field=models.IntegerField(
                blank=True, help_text="The session's owner, who pays for it.", null=True
            ),
        ),
        migrations.AddField(
            model_name="turn",
            name="address",
            field=models.BigIntegerField(
                blank=True,
                help_text="A keyed hash of the network address it came from, to count those that run at once.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="turn",
            name="throttle",
            field=models.CharField(
                blank=True,
                choices=[
                    ("user", "as many turns of its user run as the plan allows"),
                    ("address", "as many turns from its network address run as the installation allows"),
                ],
                db_default="",
                default="",
                help_text="Why it waits though a worker is free.",
                max_length=8,
            ),
        ),
        migrations.RunSQL(
            """
            UPDATE copilot_turn t SET payer_id = s.owner_id FROM copilot_session s
            WHERE s.id = t.session_id AND t.status IN ('queued', 'running', 'waiting')
            """,
            migrations.RunSQL.noop,
        ),
        migrations.AddIndex(
            model_name="turn",
            index=models.Index(
                condition=_UNFINISHED_ROOTS,
                fields=["payer_id", "status", "created_at"],
                name="turns_at_once_of_a_payer",
            ),
        ),
        migrations.AddIndex(
            model_name="turn",
            index=models.Index(
                condition=models.Q(("address__isnull", False)) & _UNFINISHED_ROOTS,
                fields=["address", "status", "created_at"],
                name="turns_at_once_of_an_address",
            ),
        ),
        migrations.RunSQL(_FUNCTION, "DROP FUNCTION IF EXISTS copilot_seat_turns(uuid[], integer)"),
    ]
