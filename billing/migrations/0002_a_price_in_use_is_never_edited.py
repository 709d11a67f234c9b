"""Calls were billed by these prices: the database keeps them as they were (B3)."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION billing_keep_price_in_use() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM billing_usagerecord WHERE price_id = OLD.id) THEN
        RAISE EXCEPTION 'a price in use is never edited: add a new row'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER a_price_in_use_is_never_edited
    BEFORE UPDATE ON billing_modelprice
    FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*)
    EXECUTE FUNCTION billing_keep_price_in_use();
"""
BACKWARD = """
DROP TRIGGER a_price_in_use_is_never_edited ON billing_modelprice;
DROP FUNCTION billing_keep_price_in_use();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
