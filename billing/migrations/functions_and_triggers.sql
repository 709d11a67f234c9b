CREATE FUNCTION billing_keep_price_in_use() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM billing_usagerecord WHERE price_id = OLD.id) THEN
        RAISE EXCEPTION 'a price in use is never edited: add a new row'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION billing_move_entitlement() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    changed boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.entitlement_version := 0;
        changed := NEW.tier <> 'FREE' OR NEW.daily_limit_override_microdollars IS NOT NULL
            OR NEW.weekly_limit_override_microdollars IS NOT NULL;
    ELSE
        NEW.entitlement_version := OLD.entitlement_version;
        NEW.entitlement_changed_at := OLD.entitlement_changed_at;
        changed := (NEW.tier, NEW.daily_limit_override_microdollars, NEW.weekly_limit_override_microdollars)
            IS DISTINCT FROM
            (OLD.tier, OLD.daily_limit_override_microdollars, OLD.weekly_limit_override_microdollars);
    END IF;
    IF changed THEN
        NEW.entitlement_version := NEW.entitlement_version + 1;
        NEW.entitlement_changed_at := clock_timestamp();
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION billing_refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% only ever grows: correct it by a further entry', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE FUNCTION billing_turns_at_once(payer integer) RETURNS integer
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN  -- not in SQL: those are planned again at every call
    RETURN COALESCE((
        SELECT policy.turns_at_once FROM billing_tierpolicy AS policy
        WHERE policy.tier = COALESCE((SELECT account.tier FROM billing_account AS account
                                      WHERE account.user_id = payer), 'FREE')), 10);
END
$$;

CREATE TRIGGER a_price_in_use_is_never_edited BEFORE UPDATE ON billing_modelprice FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION billing_keep_price_in_use();

CREATE TRIGGER allocations_are_append_only BEFORE DELETE OR UPDATE ON billing_ledgerallocation FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();

CREATE TRIGGER an_entitlement_that_changes_has_a_new_version BEFORE INSERT OR UPDATE ON billing_account FOR EACH ROW EXECUTE FUNCTION billing_move_entitlement();

CREATE TRIGGER the_ledger_is_append_only BEFORE DELETE OR UPDATE ON billing_ledgerentry FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
