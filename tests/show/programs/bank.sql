-- Joins, windows, triggers, full text and recursion in SQLite, on a file.
CREATE TABLE account(id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO account SELECT i, 'owner' || (i * 7919 % 97), i * 31 % 1009 FROM n;
CREATE INDEX by_owner ON account(owner, balance);
CREATE TABLE log(what TEXT);
CREATE TRIGGER changed AFTER UPDATE ON account BEGIN INSERT INTO log VALUES(new.id || ':' || (new.balance - old.balance)); END;
BEGIN; UPDATE account SET balance = balance + id % 5 WHERE owner IN ('owner3', 'owner5'); COMMIT;
BEGIN; DELETE FROM account; ROLLBACK;
SELECT count(*), sum(balance), avg(balance), max(owner) FROM account;
SELECT owner, sum(balance) s FROM account GROUP BY owner ORDER BY s DESC, owner LIMIT 3;
SELECT id, balance, rank() OVER (PARTITION BY owner ORDER BY balance DESC) r FROM account WHERE owner = 'owner42' ORDER BY r, id LIMIT 4;
SELECT count(*), min(what), max(what) FROM log;
WITH RECURSIVE m(a, b) AS (SELECT 0, 1 UNION ALL SELECT b, a + b FROM m WHERE b < 1e12) SELECT max(a), count(*) FROM m;
SELECT printf('%.15g %e %x', 1.0 / 3, 12345.678, 48879), hex(zeroblob(3)), upper('straße'), 7.0 / 2, 10 % 3, abs(-5.5);
SELECT a.id, b.id FROM account a JOIN account b ON a.balance = b.balance AND a.id < b.id ORDER BY 1, 2 LIMIT 3;
PRAGMA integrity_check;
VACUUM;
SELECT json_group_array(balance) FROM (SELECT balance FROM account ORDER BY id LIMIT 5);
