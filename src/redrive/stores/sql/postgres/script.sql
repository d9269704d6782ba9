-- script: what is printed for other tools besides what `open` runs itself.
-- Inputs: {schema}, quoted; {number}, of the schema that must be there. Outputs: none.
-- Atomicity: whoever runs the script does so in one transaction.

-- :name only_after
do $check$
begin
    if (select max(number) from {schema}.migration) is distinct from {number} then
        raise exception 'this is for a database that has schema {number} of redrive';
    end if;
end
$check$;
