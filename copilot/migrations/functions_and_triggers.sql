CREATE FUNCTION copilot_refuse_writes_by_owner_id() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM auth_user WHERE id = NEW.owner_id FOR KEY SHARE;
    IF EXISTS (SELECT 1 FROM copilot_erasurejob WHERE user_id = NEW.owner_id AND cancelled_at IS NULL) THEN
        RAISE EXCEPTION 'the account is being erased' USING ERRCODE = 'check_violation',
            CONSTRAINT = 'an_account_under_erasure_takes_nothing_in', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION copilot_refuse_writes_by_user_id() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM 1 FROM auth_user WHERE id = NEW.user_id FOR KEY SHARE;
    IF EXISTS (SELECT 1 FROM copilot_erasurejob WHERE user_id = NEW.user_id AND cancelled_at IS NULL) THEN
        RAISE EXCEPTION 'the account is being erased' USING ERRCODE = 'check_violation',
            CONSTRAINT = 'an_account_under_erasure_takes_nothing_in', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION copilot_seat_turns(asked uuid[], per_address integer) RETURNS TABLE(seated uuid, verdict text)
    LANGUAGE plpgsql
    AS $$
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
$$;

CREATE FUNCTION copilot_sharing_of_a_file_ends() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE copilot_share SET revoked_at = now(), revoke_reason = 'file_deleted'
    WHERE file_id = NEW.id AND revoked_at IS NULL;
    DELETE FROM copilot_sharedfile WHERE file_id = NEW.id;
    RETURN NULL;
END $$;

CREATE FUNCTION copilot_sharing_of_a_session_ends() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE copilot_share SET revoked_at = now(), revoke_reason = 'session_deleted'
    WHERE session_id = NEW.id AND revoked_at IS NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_agent FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_apikey FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_exportjob FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_importrecord FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_knowndevice FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_mcpserver FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_memoryitem FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_memoryswitch FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_preferences FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_schedule FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_session FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_share FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_signuprequest FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_storageuse FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON copilot_workspacefile FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER sharing_ends_with_its_file AFTER UPDATE OF deleted_at ON copilot_workspacefile FOR EACH ROW WHEN ((old.deleted_at IS DISTINCT FROM new.deleted_at)) EXECUTE FUNCTION copilot_sharing_of_a_file_ends();

CREATE TRIGGER sharing_ends_with_its_session AFTER UPDATE OF deleted_at ON copilot_session FOR EACH ROW WHEN ((old.deleted_at IS DISTINCT FROM new.deleted_at)) EXECUTE FUNCTION copilot_sharing_of_a_session_ends();


-- Search entries are deleted with their message by the database itself.
ALTER TABLE copilot_searchentry ADD CONSTRAINT words_go_with_their_message
    FOREIGN KEY (message_id) REFERENCES copilot_message (id) ON DELETE CASCADE;
