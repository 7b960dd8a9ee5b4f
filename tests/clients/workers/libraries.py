"""Libraries of Python, each behind the lines that tools.py sends: s3fs and pyarrow.

Run by the Python of target/clients-tools: 'libraries.py NAME', where the environment has the endpoint and
the key. A line of JSON asks for one call, a line answers it.
"""

import json
import os
import sys

ENDPOINT = os.environ["AWS_ENDPOINT_URL"]


class S3fs:
    def __init__(self):
        import s3fs

        once = {"retries": {"total_max_attempts": 1}}
        self.fs = s3fs.S3FileSystem(use_listings_cache=False, config_kwargs=once)

    def put(self, bucket, key, path):
        self.fs.put_file(path, f"{bucket}/{key}")

    def get(self, bucket, key, path):
        self.fs.get_file(f"{bucket}/{key}", path)

    def range(self, bucket, key, first, last):
        return self.fs.cat_file(f"{bucket}/{key}", start=first, end=last + 1).hex()

    def list(self, bucket, prefix):
        found = self.fs.find(f"{bucket}/{prefix}", withdirs=False)
        return [path.removeprefix(f"{bucket}/") for path in found]

    def remove(self, bucket, key):
        self.fs.rm_file(f"{bucket}/{key}")


class Pyarrow:
    def __init__(self):
        from pyarrow import fs

        self.types = fs
        self.fs = fs.S3FileSystem(
            endpoint_override=ENDPOINT,
            region=os.environ["AWS_DEFAULT_REGION"],
            tls_ca_file_path=os.environ.get("AWS_CA_BUNDLE"),
        )

    def put(self, bucket, key, path):
        with open(path, "rb") as source, self.fs.open_output_stream(f"{bucket}/{key}") as sink:
            while part := source.read(4 << 20):
                sink.write(part)

    def get(self, bucket, key, path):
        with self.fs.open_input_stream(f"{bucket}/{key}") as source, open(path, "wb") as sink:
            while part := source.read(4 << 20):
                sink.write(part)

    def range(self, bucket, key, first, last):
        with self.fs.open_input_file(f"{bucket}/{key}") as source:
            return source.read_at(last + 1 - first, first).hex()

    def list(self, bucket, prefix):
        found = self.fs.get_file_info(self.types.FileSelector(f"{bucket}/{prefix}", recursive=True))
        files = [info.path for info in found if info.type == self.types.FileType.File]
        return [path.removeprefix(f"{bucket}/") for path in files]

    def remove(self, bucket, key):
        self.fs.delete_file(f"{bucket}/{key}")


def main():
    library = {"s3fs": S3fs, "pyarrow": Pyarrow}[sys.argv[1]]()
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            answer = {"value": getattr(library, ask.pop("call"))(**ask)}
        except Exception as error:  # Whatever a library raises is what its user sees.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
