-- Step 1 of watching for late commits: up to where ids have been drawn. Alone and before step 2 (S-order).
SELECT last_value - (NOT is_called)::integer AS last_value FROM oncommit.outbox_id_seq
