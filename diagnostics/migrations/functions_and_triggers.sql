CREATE FUNCTION diagnostics_refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.keep_until < now() THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is never changed, and kept until %', OLD.keep_until
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER repairs_are_recorded_for_good BEFORE DELETE OR UPDATE ON diagnostics_repairaudit FOR EACH ROW EXECUTE FUNCTION diagnostics_refuse_change();
