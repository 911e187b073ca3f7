-- Whether the seat is ours, to the end of this transaction: until then nobody can take it, and one that was taken makes
-- this wait, read the seat again and find another owner. Also where the lease has just run out: it is the owner that
-- counts, since nobody acts who has not taken the seat.
SELECT s.name
FROM oncommit.setting s
WHERE s.name = 'maintenance' AND s.value ->> 'owner' = $1::text
FOR KEY SHARE
