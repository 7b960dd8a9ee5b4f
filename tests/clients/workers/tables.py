"""Tables in a bucket: 'tables.py duckdb|deltalake BUCKET ROWS WRONG_SECRET', run by the Python of
target/clients-tools. SSL_CERT_FILE names an authority whose certificates are good. What does not hold ends it with an error.
"""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import deltalake
import duckdb
import duckdb_extension_httpfs
import pyarrow as pa

library, bucket, rows, wrong = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL"])
# Deltalake takes it from the environment itself.
authority = os.environ.get("SSL_CERT_FILE")


def secret(of):
    return f"""CREATE OR REPLACE SECRET s (TYPE s3, KEY_ID '{os.environ["AWS_ACCESS_KEY_ID"]}', SECRET '{of}',
        REGION '{os.environ["AWS_DEFAULT_REGION"]}', ENDPOINT '{endpoint.netloc}', URL_STYLE 'path',
        USE_SSL {str(endpoint.scheme == "https").lower()})"""


def check(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: {expected} is expected, {found} was found")


def with_duckdb():
    db = duckdb.connect()
    folder = Path(duckdb_extension_httpfs.__path__[0], "extensions", f"v{duckdb.__version__}")
    db.execute(f"LOAD '{folder / 'httpfs.duckdb_extension'}'")
    if authority:
        db.execute(f"SET ca_cert_file = '{authority}'")
    db.execute(secret(os.environ["AWS_SECRET_ACCESS_KEY"]))
    for part in range(3):
        numbers = f"SELECT range AS n, md5(range::VARCHAR) AS text FROM range({part * rows}, {(part + 1) * rows})"
        db.execute(f"COPY ({numbers}) TO 's3://{bucket}/duck/part={part}/a b.parquet' (FORMAT parquet)")
    count, total = 3 * rows, 3 * rows * (3 * rows - 1) // 2
    of_all = f"FROM read_parquet('s3://{bucket}/duck/*/*.parquet', hive_partitioning = true)"
    found = db.execute(f"SELECT count(*), sum(n)::BIGINT, count(DISTINCT part) {of_all}").fetchone()
    check("duckdb", (count, total, 3), found)
    found = db.execute(f"SELECT text {of_all} WHERE n = {rows + 7}").fetchone()
    check("one row", db.execute(f"SELECT md5('{rows + 7}')").fetchone(), found)
    db.execute(secret(wrong))
    try:
        db.execute(f"SELECT count(*) {of_all}").fetchone()
    except duckdb.Error as error:
        check("a wrong secret", True, "403" in str(error) or "SignatureDoesNotMatch" in str(error))
    else:
        sys.exit("duckdb reads with a wrong secret")


def with_deltalake():
    url = f"s3://{bucket}/delta"
    # Commits of a table are creates: the server decides between two writers.
    plain = str(endpoint.scheme == "http").lower()
    options = {"allow_http": plain, "aws_conditional_put": "etag"}
    table = pa.table({"n": pa.array(range(rows)), "day": pa.array([n % 2 for n in range(rows)])})
    for mode in ["overwrite", "append", "append"]:
        deltalake.write_deltalake(
            url, table, mode=mode, partition_by=["day"], storage_options=options
        )
    found = deltalake.DeltaTable(url, storage_options=options)
    check("versions", 2, found.version())
    check("rows", 3 * rows, found.to_pyarrow_table().num_rows)
    # Two writers that stand at one version: both appends are kept, each as a version of its own.
    writers = [deltalake.DeltaTable(url, storage_options=options) for _ in range(2)]
    for writer in writers:
        deltalake.write_deltalake(writer, table, mode="append")
    found = deltalake.DeltaTable(url, storage_options=options)
    check("versions of two writers", (4, 5 * rows), (found.version(), found.to_pyarrow_table().num_rows))
    found.delete("day = 1")
    check("rows after a delete", 5 * ((rows + 1) // 2), found.to_pyarrow_table().num_rows)
    found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = deltalake.DeltaTable(url, storage_options=options)
    check("rows after a vacuum", 5 * ((rows + 1) // 2), before.to_pyarrow_table().num_rows)
    try:
        deltalake.DeltaTable(url, storage_options={**options, "aws_secret_access_key": wrong})
    except Exception as error:  # Whatever it raises is what its user sees.
        check("a wrong secret", True, "SignatureDoesNotMatch" in str(error))
    else:
        sys.exit("deltalake reads with a wrong secret")


{"duckdb": with_duckdb, "deltalake": with_deltalake}[library]()
