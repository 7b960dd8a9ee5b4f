"""What the tests of all clients share."""

import hashlib
import itertools
import os
import random
import unittest

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

import server

# Bytes around which the server stores and sends differently: in one append, in a file, in pieces.
SIZES = [0, 1, 600, 100 << 10, (5 << 20) + 1]

# Keys that a client, a URL or XML writes in another way than they are, in the order of a listing.
ODD_KEYS = [
    " ",
    "#fragment",
    "'\"",
    ".",
    "..",
    "../above",
    "./here",
    "/",
    "/first",
    ";:@=$,!*()~",
    "<tag>&amp;",
    "?query=1&more",
    "a b",
    "a%20b",
    "a+b",
    "a/../b",
    "a//b",
    "a/b",
    "back\\slash",
    "dir/",
    "dir//",
    "e\u0301",
    "line\nbreak",
    "tab\tstop",
    "\u00e9",
    "\u65e5\u672c/\u00fc.txt",
    "\U0001f600",
]
assert ODD_KEYS == sorted(ODD_KEYS, key=lambda key: key.encode()), "as a listing has them"

_numbers = itertools.count(1)


def body_of(size, seed=0):
    """Bytes that do not repeat, the same for the same size and seed."""
    return random.Random(f"{size} {seed}").randbytes(size)


def md5(body):
    return hashlib.md5(body).hexdigest()


def client(endpoint=None, access_key=None, secret_key=None, region=None, attempts=1, **settings):
    """An S3 client with the administrator's key, as its user makes one. It tries once: what it
    would try again is what the tests are to see."""
    access = server.server.access
    return boto3.client(
        "s3",
        endpoint_url=endpoint or access["endpoint"],
        region_name=region or access["region"],
        aws_access_key_id=access_key or access["access_key"],
        aws_secret_access_key=secret_key or access["secret_key"],
        config=Config(
            retries={"total_max_attempts": attempts},
            connect_timeout=5,
            read_timeout=30,
            **settings,
        ),
    )


def resource():
    """boto3's interface of resources, with the administrator's key."""
    access = server.server.access
    return boto3.resource(
        "s3",
        endpoint_url=access["endpoint"],
        region_name=access["region"],
        aws_access_key_id=access["access_key"],
        aws_secret_access_key=access["secret_key"],
    )


class Case(unittest.TestCase):
    """A test with a client, and buckets of its own."""

    @classmethod
    def setUpClass(cls):
        cls.s3 = client()

    @classmethod
    def new_bucket(cls):
        """A bucket that no other test uses."""
        name = f"bucket-{next(_numbers)}-{os.getpid()}"
        cls.s3.create_bucket(Bucket=name)
        return name

    def refused(self, code, status, call, **arguments):
        """The call is refused with this code and status; answers what came."""
        with self.assertRaises(ClientError) as caught:
            call(**arguments)
        answer = caught.exception.response
        self.assertEqual(
            (code, status),
            (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]),
            answer,
        )
        return answer

    def body(self, bucket, key, **arguments):
        return self.s3.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read()

    def keys(self, bucket, **arguments):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, **arguments)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]
