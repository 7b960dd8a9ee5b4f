"""Versions, through boto3: what is replaced or deleted stays, under a name of its own."""

import io
from concurrent.futures import ThreadPoolExecutor

from boto3.s3.transfer import TransferConfig

from cases import ODD_KEYS, SIZES, Case, body_of, resource

IN_PARTS = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)


class Versions(Case):
    def new_bucket(self, status="Enabled"):
        bucket = super().new_bucket()
        self.set(bucket, status)
        return bucket

    def set(self, bucket, status):
        self.s3.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": status}
        )

    def put(self, bucket, key, body):
        return self.s3.put_object(Bucket=bucket, Key=key, Body=body)["VersionId"]

    def listed(self, bucket, size=1000, **arguments):
        """Versions and markers of all pages: key, ID, whether it is the newest, whether a marker."""
        pages = self.s3.get_paginator("list_object_versions").paginate(
            Bucket=bucket, PaginationConfig={"PageSize": size}, **arguments
        )
        found = []
        for page in pages:
            for name in ("Versions", "DeleteMarkers"):
                for one in page.get(name, []):
                    is_marker = name == "DeleteMarkers"
                    found.append((one["Key"], one["VersionId"], one["IsLatest"], is_marker))
        return sorted(found)

    def test_versioning_is_shown_as_it_was_set(self):
        bucket = super().new_bucket()
        self.assertNotIn("Status", self.s3.get_bucket_versioning(Bucket=bucket))
        for status in ("Enabled", "Suspended", "Enabled"):
            self.set(bucket, status)
            self.assertEqual(status, self.s3.get_bucket_versioning(Bucket=bucket)["Status"])
        self.refused(
            "MalformedXML",
            400,
            self.s3.put_bucket_versioning,
            Bucket=bucket,
            VersioningConfiguration={"Status": "Off"},
        )

    def test_version_of_each_size_comes_back_when_it_was_replaced(self):
        bucket = self.new_bucket()
        ids = {}
        for size in SIZES + SIZES[::-1]:
            ids[self.put(bucket, "k", body_of(size, len(ids)))] = body_of(size, len(ids))
        self.s3.delete_object(Bucket=bucket, Key="k")
        for version, body in ids.items():
            self.assertEqual(body, self.body(bucket, "k", VersionId=version))
            head = self.s3.head_object(Bucket=bucket, Key="k", VersionId=version)
            self.assertEqual((len(body), version), (head["ContentLength"], head["VersionId"]))
        version, body = list(ids.items())[3]
        part = self.body(bucket, "k", VersionId=version, Range="bytes=5-99")
        self.assertEqual(body[5:100], part)

    def test_object_of_parts_is_a_version(self):
        bucket = self.new_bucket()
        body = body_of(11 << 20)
        first = self.put(bucket, "k", b"first")
        self.s3.upload_fileobj(io.BytesIO(body), bucket, "k", Config=IN_PARTS)
        parts = self.s3.head_object(Bucket=bucket, Key="k")["VersionId"]
        last = self.put(bucket, "k", b"last")
        self.assertEqual(3, len({first, parts, last}))
        self.assertEqual(body, self.body(bucket, "k", VersionId=parts))
        self.s3.delete_object(Bucket=bucket, Key="k", VersionId=last)
        self.assertEqual(body, self.body(bucket, "k"))

    def test_delete_marker_hides_an_object_until_it_is_removed(self):
        bucket = self.new_bucket()
        version = self.put(bucket, "k", b"x")
        deleted = self.s3.delete_object(Bucket=bucket, Key="k")
        self.assertTrue(deleted["DeleteMarker"])
        marker = deleted["VersionId"]
        self.refused("NoSuchKey", 404, self.s3.get_object, Bucket=bucket, Key="k")
        self.refused(
            "MethodNotAllowed", 405, self.s3.get_object, Bucket=bucket, Key="k", VersionId=marker
        )
        self.assertEqual([], self.keys(bucket))
        self.assertEqual(
            sorted([("k", version, False, False), ("k", marker, True, True)]), self.listed(bucket)
        )
        self.refused("BucketNotEmpty", 409, self.s3.delete_bucket, Bucket=bucket)
        removed = self.s3.delete_object(Bucket=bucket, Key="k", VersionId=marker)
        self.assertEqual((True, marker), (removed["DeleteMarker"], removed["VersionId"]))
        self.assertEqual(b"x", self.body(bucket, "k"))
        self.refused(
            "NoSuchVersion", 404, self.s3.get_object, Bucket=bucket, Key="k", VersionId=marker
        )

    def test_create_succeeds_where_a_marker_is_the_newest(self):
        bucket = self.new_bucket()
        self.put(bucket, "k", b"x")
        create = {"Bucket": bucket, "Key": "k", "Body": b"y", "IfNoneMatch": "*"}
        self.refused("PreconditionFailed", 412, self.s3.put_object, **create)
        self.s3.delete_object(Bucket=bucket, Key="k")
        self.s3.put_object(**create)
        self.assertEqual(b"y", self.body(bucket, "k"))

    def test_bucket_that_had_objects_keeps_them_as_the_version_null(self):
        bucket = super().new_bucket()
        self.assertNotIn("VersionId", self.s3.put_object(Bucket=bucket, Key="k", Body=b"old"))
        self.set(bucket, "Enabled")
        version = self.put(bucket, "k", b"new")
        self.assertEqual(b"old", self.body(bucket, "k", VersionId="null"))
        self.set(bucket, "Suspended")
        for body in (b"1", b"2"):
            self.assertEqual("null", self.put(bucket, "k", body))
        self.assertEqual(b"2", self.body(bucket, "k", VersionId="null"))
        self.assertEqual(b"new", self.body(bucket, "k", VersionId=version))
        self.assertEqual(2, len(self.listed(bucket)))

    def test_pages_of_versions_have_each_once(self):
        bucket = self.new_bucket()
        keys = [key for key in ODD_KEYS if key.isprintable()]
        for key in keys:
            self.put(bucket, key, b"1")
            self.put(bucket, key, b"2")
        for key in keys[::3]:
            self.s3.delete_object(Bucket=bucket, Key=key)
        whole = self.listed(bucket)
        self.assertEqual(2 * len(keys) + len(keys[::3]), len(whole))
        self.assertEqual(len(keys), sum(latest for _, _, latest, _ in whole))
        for size in (1, 7, 50):
            self.assertEqual(whole, self.listed(bucket, size), f"pages of {size}")
        below = [one for one in whole if one[0].startswith("a")]
        self.assertEqual(below, self.listed(bucket, 2, Prefix="a"))

    def test_versions_put_at_once_are_all_there(self):
        bucket = self.new_bucket()
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda n: self.put(bucket, "k", b"%d" % n), range(64)))
        self.assertEqual(64, len(set(ids)))
        self.assertEqual(sorted(ids), sorted(version for _, version, _, _ in self.listed(bucket)))
        for number in (0, 31, 63):
            self.assertEqual(b"%d" % number, self.body(bucket, "k", VersionId=ids[number]))

    def test_older_version_is_restored_by_a_copy(self):
        bucket = self.new_bucket()
        first = self.put(bucket, "k", b"first")
        self.put(bucket, "k", b"second")
        source = {"Bucket": bucket, "Key": "k", "VersionId": first}
        copied = self.s3.copy_object(Bucket=bucket, Key="k", CopySource=source)
        self.assertEqual(first, copied["CopySourceVersionId"])
        self.assertEqual(b"first", self.body(bucket, "k"))
        self.assertEqual(3, len(self.listed(bucket)))

    def test_tags_are_kept_with_each_version(self):
        bucket = self.new_bucket()
        put = {"Bucket": bucket, "Key": "k", "Body": body_of(600)}
        first = self.s3.put_object(**put, Tagging="a=1&b=%C3%BC+%26")["VersionId"]
        second = self.s3.put_object(**put)["VersionId"]

        def tags(version):
            got = self.s3.get_object_tagging(Bucket=bucket, Key="k", VersionId=version)
            return {tag["Key"]: tag["Value"] for tag in got["TagSet"]}

        self.assertEqual([{"a": "1", "b": "\u00fc &"}, {}], [tags(first), tags(second)])
        long = {"name": "v" * 256}
        tag_set = [{"Key": key, "Value": value} for key, value in long.items()]
        self.s3.put_object_tagging(
            Bucket=bucket, Key="k", VersionId=first, Tagging={"TagSet": tag_set}
        )
        self.assertEqual([long, {}], [tags(first), tags(second)])
        head = self.s3.head_object(Bucket=bucket, Key="k", VersionId=first)
        self.assertEqual("1", head["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"])
        source = {"Bucket": bucket, "Key": "k", "VersionId": first}
        copied = self.s3.copy_object(Bucket=bucket, Key="copy", CopySource=source)
        got = self.s3.get_object_tagging(Bucket=bucket, Key="copy")
        self.assertEqual((copied["VersionId"], tag_set), (got["VersionId"], got["TagSet"]))
        self.s3.delete_object_tagging(Bucket=bucket, Key="k", VersionId=first)
        self.assertEqual({}, tags(first))
        self.assertEqual(body_of(600), self.body(bucket, "k", VersionId=first))

    def test_bucket_is_emptied_of_versions_in_bulk(self):
        name = self.new_bucket()
        for number in range(12):
            self.put(name, f"k{number % 5}", b"x")
            self.s3.delete_object(Bucket=name, Key=f"k{number % 4}")
        s3 = resource()
        s3.Bucket(name).object_versions.delete()
        self.assertEqual([], self.listed(name))
        self.s3.delete_bucket(Bucket=name)
