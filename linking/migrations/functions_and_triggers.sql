CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON linking_platformlink FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_owner_id();

CREATE TRIGGER refuse_writes_during_account_deletion BEFORE INSERT ON linking_platformuserlink FOR EACH ROW EXECUTE FUNCTION copilot_refuse_writes_by_user_id();
