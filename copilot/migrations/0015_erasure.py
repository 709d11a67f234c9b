"""The database refuses what would be written for an account that is being erased, whoever writes (S17)."""

from django.db import migrations

# An insert holds the user's row as its foreign key does; who asks for an erasure holds it alone. So a write comes
# before the request and is erased with the rest, or after it and is refused; there is nothing between.
FUNCTION = """
CREATE FUNCTION copilot_refuse_writes_by_{column}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM auth_user WHERE id = NEW.{column} FOR KEY SHARE;
    IF EXISTS (SELECT 1 FROM copilot_erasurejob WHERE user_id = NEW.{column} AND cancelled_at IS NULL) THEN
        RAISE EXCEPTION 'the account is being erased' USING ERRCODE = 'check_violation',
            CONSTRAINT = 'an_account_under_erasure_takes_nothing_in', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;
"""
OWNED = (
    "session",
    "workspacefile",
    "storageuse",
    "memoryitem",
    "memoryswitch",
    "preferences",
    "agent",
    "schedule",
    "mcpserver",
    "share",
    "exportjob",
    "importrecord",
)
TRIGGER = """
CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_{table}
    FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_{column}();
"""
TABLES = [*((table, "owner_id") for table in OWNED), ("apikey", "user_id")]
FORWARD = "".join(
    [
        *(FUNCTION.format(column=column) for column in ("owner_id", "user_id")),
        *(TRIGGER.format(table=table, column=column) for table, column in TABLES),
    ]
)
BACKWARD = "".join(
    [
        *(f"DROP TRIGGER nothing_for_an_account_under_erasure ON copilot_{table};" for table, _ in TABLES),
        *(f"DROP FUNCTION copilot_refuse_writes_by_{column}();" for column in ("owner_id", "user_id")),
    ]
)


class Migration(migrations.Migration):
    dependencies = [("copilot", "0014_fewer_indexes")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
