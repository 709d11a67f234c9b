CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON linking_platformlink FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER nothing_for_an_account_under_erasure BEFORE INSERT ON linking_platformuserlink FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();
