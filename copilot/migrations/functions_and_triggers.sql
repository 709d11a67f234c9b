CREATE FUNCTION copilot_refuse_writes_by_owner_id() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM auth_user WHERE id = NEW.owner_id FOR KEY SHARE;
    IF EXISTS (SELECT 1 FROM copilot_accountdeletion WHERE user_id = NEW.owner_id AND cancelled_at IS NULL) THEN
        RAISE EXCEPTION 'the account is being deleted' USING ERRCODE = 'check_violation',
            CONSTRAINT = 'an_account_under_deletion_takes_nothing_in', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION copilot_refuse_writes_by_user_id() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM auth_user WHERE id = NEW.user_id FOR KEY SHARE;
    IF EXISTS (SELECT 1 FROM copilot_accountdeletion WHERE user_id = NEW.user_id AND cancelled_at IS NULL) THEN
        RAISE EXCEPTION 'the account is being deleted' USING ERRCODE = 'check_violation',
            CONSTRAINT = 'an_account_under_deletion_takes_nothing_in', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

-- Decide which of the requested turns may start now, so that no account and no network address runs more turns at once
-- than it may. Turns that must wait are marked. Verdicts: 'start', 'wait' (marked just now), and 'wake' for other queued
-- turns that may start too. Turns of sub-sessions count for nobody. The advisory locks make concurrent claims of one
-- account, and of one address, take turns.
CREATE FUNCTION copilot_apply_turn_caps(requested uuid[], per_address integer) RETURNS TABLE(turn_id uuid, verdict text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    batch record;
    allowed integer;
    running integer;
    unfinished integer;
    throttled integer;
    any_address boolean := false;
    next_in_line uuid[];
    startable uuid[] := ARRAY[]::uuid[];
    to_wake uuid[] := ARRAY[]::uuid[];
    over_address_cap uuid[] := ARRAY[]::uuid[];
BEGIN
    FOR batch IN
        SELECT CASE WHEN t.parent_id IS NULL THEN t.payer_id END AS payer, array_agg(t.id) AS ids,
               bool_or(t.address_hash IS NOT NULL) AS has_address
        FROM copilot_turn t WHERE t.id = ANY(requested) GROUP BY 1 ORDER BY 1 NULLS FIRST
    LOOP
        any_address := any_address OR batch.has_address;
        allowed := CASE WHEN batch.payer IS NULL THEN 0 ELSE billing_turns_at_once(batch.payer) END;
        IF allowed = 0 THEN
            startable := startable || batch.ids;
            CONTINUE;
        END IF;
        PERFORM pg_advisory_xact_lock(1346917461, batch.payer);
        SELECT count(*), count(*) FILTER (WHERE t.status = 'running'),
               count(*) FILTER (WHERE t.status = 'queued' AND t.throttled_by <> '')
        INTO unfinished, running, throttled FROM copilot_turn t
        WHERE t.payer_id = batch.payer AND t.parent_id IS NULL AND t.status IN ('queued', 'running');
        IF unfinished <= allowed AND throttled = 0 THEN
            startable := startable || batch.ids;
            CONTINUE;
        END IF;
        next_in_line := ARRAY(SELECT t.id FROM copilot_turn t
                              WHERE t.payer_id = batch.payer AND t.parent_id IS NULL AND t.status = 'queued'
                              ORDER BY t.created_at, t.id LIMIT greatest(allowed - running, 0));
        startable := startable || ARRAY(SELECT unnest(batch.ids) INTERSECT SELECT unnest(next_in_line));
        to_wake := to_wake || ARRAY(SELECT t.id FROM copilot_turn t
                                    WHERE t.id = ANY(next_in_line) AND t.id <> ALL(batch.ids)
                                      AND t.throttled_by <> '');
    END LOOP;
    IF any_address AND per_address > 0 THEN
        FOR batch IN
            SELECT t.address_hash, array_agg(t.id ORDER BY t.created_at, t.id) AS ids FROM copilot_turn t
            WHERE t.id = ANY(startable) AND t.address_hash IS NOT NULL AND t.parent_id IS NULL GROUP BY 1 ORDER BY 1
        LOOP
            PERFORM pg_advisory_xact_lock(1346917441, hashint8(batch.address_hash));
            SELECT count(*) INTO running FROM copilot_turn t
            WHERE t.address_hash = batch.address_hash AND t.parent_id IS NULL AND t.status = 'running';
            over_address_cap := over_address_cap || batch.ids[greatest(per_address - running, 0) + 1:];
        END LOOP;
    END IF;
    FOREACH turn_id IN ARRAY startable LOOP
        verdict := 'start';
        IF turn_id <> ALL(over_address_cap) THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    FOREACH turn_id IN ARRAY to_wake LOOP
        verdict := 'wake';
        RETURN NEXT;
    END LOOP;
    IF cardinality(startable) = cardinality(requested) AND cardinality(over_address_cap) = 0 THEN
        RETURN;
    END IF;
    RETURN QUERY UPDATE copilot_turn t
        SET throttled_by = CASE WHEN t.id = ANY(over_address_cap) THEN 'address' ELSE 'user' END
        WHERE t.id = ANY(requested) AND (t.id <> ALL(startable) OR t.id = ANY(over_address_cap))
          AND t.status = 'queued' AND t.throttled_by = ''
        RETURNING t.id, 'wait';
END
$$;

CREATE FUNCTION copilot_end_shares_of_file() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE copilot_share SET revoked_at = now(), revoke_reason = 'file_deleted'
    WHERE file_id = NEW.id AND revoked_at IS NULL;
    DELETE FROM copilot_sharedfile WHERE file_id = NEW.id;
    RETURN NULL;
END $$;

CREATE FUNCTION copilot_end_shares_of_session() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE copilot_share SET revoked_at = now(), revoke_reason = 'session_deleted'
    WHERE session_id = NEW.id AND revoked_at IS NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_agent FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_apikey FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_exportjob FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_importrecord FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_knowndevice FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_mcpserver FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_memoryitem FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_memorypreference FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_preferences FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_schedule FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_session FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_share FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_signuprequest FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_storageuse FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON copilot_workspacefile FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER sharing_ends_with_its_file AFTER UPDATE OF deleted_at ON copilot_workspacefile FOR EACH ROW WHEN ((old.deleted_at IS DISTINCT FROM new.deleted_at)) EXECUTE FUNCTION copilot_end_shares_of_file();

CREATE TRIGGER sharing_ends_with_its_session AFTER UPDATE OF deleted_at ON copilot_session FOR EACH ROW WHEN ((old.deleted_at IS DISTINCT FROM new.deleted_at)) EXECUTE FUNCTION copilot_end_shares_of_session();


-- Search entries are deleted with their message by the database itself.
ALTER TABLE copilot_searchentry ADD CONSTRAINT search_entries_go_with_their_message
    FOREIGN KEY (message_id) REFERENCES copilot_message (id) ON DELETE CASCADE;
