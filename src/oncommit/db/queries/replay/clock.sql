-- Now, and since when everything is kept for certain; what is older may lack a part.
SELECT oncommit.now() AS now,
       ((oncommit.now() AT TIME ZONE 'UTC')::date - $1::integer)::timestamp AT TIME ZONE 'UTC' AS kept_since
