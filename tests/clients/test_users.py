"""Users, keys, policies, public access, ACLs, tags and CORS of buckets: through 'craton user', 'craton
bucket' and boto3."""

import itertools
import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import server
from cases import Case, client

_names = itertools.count(1)


def craton(*arguments, code=0):
    """Runs a command on the cluster; answers what it printed."""
    command = [server.server.binary, *map(str, arguments), "--cluster", server.server.dir]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def new_user(*arguments):
    """A user and its client."""
    name = f"user-{next(_names)}-{os.getpid()}"
    made = json.loads(craton("user", "create", name, "--json", *arguments))
    key = made["keys"][0]
    return made, client(access_key=key["access_key"], secret_key=key["secret_key"])


def file_of(document):
    path = Path(tempfile.mkdtemp(dir=server.server.root)) / "policy.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def allow(actions, resource, principal=None, **more):
    statement = {"Effect": "Allow", "Action": actions, "Resource": resource, **more}
    if principal is not None:
        statement["Principal"] = principal
    return {"Version": "2012-10-17", "Statement": [statement]}


def plain(bucket, key="", method="GET", headers=None, data=None):
    """A request without a signature: status, headers and body."""
    url = f"{server.server.access['endpoint']}/{bucket}/{key}"
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=data)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Users(Case):
    def test_user_is_made_shown_and_removed(self):
        made, s3 = new_user("--email", "a@example.com", "--display-name", "Ann")
        name = made["user"]
        self.assertEqual((made["email"], made["display_name"], made["admin"]),
                         ("a@example.com", "Ann", False))  # fmt: skip
        self.assertIn(name, [user["user"] for user in json.loads(craton("user", "ls", "--json"))])
        shown = json.loads(craton("user", "info", name, "--json"))
        self.assertEqual(made["id"], shown["id"])
        self.assertNotIn("secret_key", shown["keys"][0])
        self.assertIn("Ann", craton("user", "info", name))
        self.assertIn("there is a user of that name", craton("user", "create", name, code=1))
        owner = s3.list_buckets()["Owner"]
        self.assertEqual(made["id"], owner["ID"])
        s3.create_bucket(Bucket=f"of-{name}")
        self.assertIn("has buckets", craton("user", "rm", name, code=1))
        s3.delete_bucket(Bucket=f"of-{name}")
        craton("user", "rm", name)
        self.refused("InvalidAccessKeyId", 403, s3.list_buckets)
        self.assertIn("no such user", craton("user", "info", name, code=1))

    def test_key_is_added_disabled_enabled_and_removed_at_once(self):
        made, first = new_user()
        name = made["user"]
        key = json.loads(craton("user", "key", "add", name, "--expires", "30d", "--json"))
        second = client(access_key=key["access_key"], secret_key=key["secret_key"])
        self.assertTrue(key["expires"].endswith("Z"))
        second.list_buckets()
        for _ in range(3):
            craton("user", "key", "disable", name, key["access_key"])
            self.refused("InvalidAccessKeyId", 403, second.list_buckets)
            craton("user", "key", "enable", name, key["access_key"])
            second.list_buckets()
        craton("user", "key", "rm", name, key["access_key"])
        self.refused("InvalidAccessKeyId", 403, second.list_buckets)
        first.list_buckets()

    def test_call_of_another_user_is_no_repeat_where_acls_are_off(self):
        bucket = self.new_bucket()
        made, other = new_user()
        put = allow("s3:PutObject", f"arn:aws:s3:::{bucket}/*", {"CanonicalUser": made["id"]})
        self.s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(put))

        def create(s3, attempt):
            """Creates an object, as an attempt at a call of that name."""

            def named(request, **_):
                # It is not signed.
                request.headers["amz-sdk-invocation-id"] = attempt

            s3.meta.events.register("before-send.s3.PutObject", named)
            try:
                s3.put_object(Bucket=bucket, Key="k", Body=b"same", IfNoneMatch="*")
            finally:
                s3.meta.events.unregister("before-send.s3.PutObject", named)

        create(self.s3, "one")
        create(self.s3, "one")
        self.refused("PreconditionFailed", 412, create, s3=self.s3, attempt="two")
        # The object is the bucket owner's in both cases: the caller makes the difference.
        self.refused("PreconditionFailed", 412, create, s3=other, attempt="one")

    def test_given_keys_work(self):
        secret = "a secret/with+signs"
        self.assertIn("without spaces", craton("user", "create", "x", "--access-key", "AAA",
                                               "--secret-key", secret, code=2))  # fmt: skip
        made, s3 = new_user("--access-key", "MY.KEY_1", "--secret-key", secret.replace(" ", "'"))
        self.assertEqual("MY.KEY_1", made["keys"][0]["access_key"])
        s3.list_buckets()

    def test_env_is_what_a_shell_needs(self):
        made, _ = new_user()
        script = 'eval "$(cat)"; env'
        lines = subprocess.run(["sh", "-c", script], input=craton("user", "env", made["user"]),
                               capture_output=True, text=True, check=True).stdout  # fmt: skip
        env = dict(line.split("=", 1) for line in lines.splitlines() if "=" in line)
        key = made["keys"][0]
        self.assertEqual(key["access_key"], env["AWS_ACCESS_KEY_ID"])
        self.assertEqual(key["secret_key"], env["AWS_SECRET_ACCESS_KEY"])
        self.assertEqual(server.server.access["endpoint"], env["AWS_ENDPOINT_URL"])

    def test_policy_of_a_user_and_of_a_key_count_at_once(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="a/1", Body=b"x")
        made, s3 = new_user()
        name = made["user"]
        get = dict(Bucket=bucket, Key="a/1")
        self.refused("AccessDenied", 403, s3.get_object, **get)
        read = allow(["s3:GetObject", "s3:ListBucket"], "*")
        craton("user", "policy", name, "--set", file_of(read))
        self.assertEqual(read, json.loads(craton("user", "policy", name)))
        self.assertEqual(b"x", s3.get_object(**get)["Body"].read())
        self.refused("AccessDenied", 403, s3.put_object, Body=b"y", **get)
        narrow = file_of(allow("s3:ListBucket", f"arn:aws:s3:::{bucket}"))
        key = json.loads(craton("user", "key", "add", name, "--policy", narrow, "--json"))
        other = client(access_key=key["access_key"], secret_key=key["secret_key"])
        self.assertEqual(1, other.list_objects_v2(Bucket=bucket)["KeyCount"])
        self.refused("AccessDenied", 403, other.get_object, **get)
        craton("user", "policy", name, "--clear")
        self.refused("AccessDenied", 403, s3.get_object, **get)
        self.assertIn("policy.json", craton("user", "policy", name, "--set", file_of("{"), code=1))


class Buckets(Case):
    def test_bucket_is_made_for_a_user_shown_and_removed_with_all(self):
        made, s3 = new_user()
        name = f"made-{made['user']}"
        craton("bucket", "create", name, "--owner", made["user"])
        self.assertIn("there is a bucket", craton("bucket", "create", name, code=1))
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        for number in range(3):
            s3.put_object(Bucket=name, Key="k", Body=b"%d" % number)
        s3.delete_object(Bucket=name, Key="k")
        info = json.loads(craton("bucket", "info", name, "--json"))
        self.assertEqual((made["user"], "enabled", True),
                         (info["owner"], info["versioning"], info["public_access_blocked"]))  # fmt: skip
        listed = {one["bucket"]: one for one in json.loads(craton("bucket", "ls", "--json"))}
        self.assertEqual(made["user"], listed[name]["owner"])
        self.assertIn("--force", craton("bucket", "rm", name, code=1))
        self.assertIn("4 objects and versions", craton("bucket", "rm", name, "--force"))
        self.refused("NoSuchBucket", 404, s3.list_objects_v2, Bucket=name)

    def test_bucket_that_all_may_read_is_read_without_a_signature(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="page", Body=b"hello")
        self.assertEqual(403, plain(bucket, "page")[0])
        craton("bucket", "policy", bucket, "--set", "public-read")
        status, _, body = plain(bucket, "page")
        self.assertEqual((200, b"hello"), (status, body))
        self.assertEqual(403, plain(bucket)[0])
        self.assertEqual(403, plain(bucket, "other", "PUT", data=b"x")[0])
        status = self.s3.get_bucket_policy_status(Bucket=bucket)
        self.assertTrue(status["PolicyStatus"]["IsPublic"])
        craton("bucket", "policy", bucket, "--set", "private")
        self.assertEqual(403, plain(bucket, "page")[0])

    def test_policy_of_a_bucket_allows_another_user(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="a/1", Body=b"x")
        made, s3 = new_user()
        principal = {"AWS": f"arn:aws:iam:::user/{made['user']}"}
        policy = json.dumps(allow("s3:GetObject", f"arn:aws:s3:::{bucket}/a/*", principal))
        self.refused("NoSuchBucketPolicy", 404, self.s3.get_bucket_policy, Bucket=bucket)
        self.s3.put_bucket_policy(Bucket=bucket, Policy=policy)
        self.assertEqual(policy, self.s3.get_bucket_policy(Bucket=bucket)["Policy"])
        self.assertEqual(b"x", s3.get_object(Bucket=bucket, Key="a/1")["Body"].read())
        self.refused("AccessDenied", 403, s3.get_object, Bucket=bucket, Key="b")
        self.refused("AccessDenied", 403, s3.put_bucket_policy, Bucket=bucket, Policy=policy)
        public = json.dumps(allow("s3:GetObject", f"arn:aws:s3:::{bucket}/*", "*"))
        self.refused("AccessDenied", 403, self.s3.put_bucket_policy, Bucket=bucket, Policy=public)
        self.refused("MalformedPolicy", 400, self.s3.put_bucket_policy, Bucket=bucket, Policy="{}")
        self.s3.delete_bucket_policy(Bucket=bucket)
        self.refused("AccessDenied", 403, s3.get_object, Bucket=bucket, Key="a/1")

    def test_block_of_what_is_public_is_lifted_and_set(self):
        bucket = self.new_bucket()
        blocked = self.s3.get_public_access_block(Bucket=bucket)
        self.assertTrue(all(blocked["PublicAccessBlockConfiguration"].values()))
        self.s3.delete_public_access_block(Bucket=bucket)
        self.refused("NoSuchPublicAccessBlockConfiguration", 404,
                     self.s3.get_public_access_block, Bucket=bucket)  # fmt: skip
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        public = json.dumps(allow("s3:GetObject", f"arn:aws:s3:::{bucket}/*", "*"))
        self.s3.put_bucket_policy(Bucket=bucket, Policy=public)
        self.assertEqual(200, plain(bucket, "k")[0])
        block = {"BlockPublicAcls": True, "IgnorePublicAcls": True, "BlockPublicPolicy": True,
                 "RestrictPublicBuckets": True}  # fmt: skip
        self.s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=block)
        self.assertEqual(403, plain(bucket, "k")[0])

    def test_acl_of_a_bucket_counts_when_acls_are_on(self):
        made, s3 = new_user()
        bucket = self.new_bucket()
        grantee = dict(Bucket=bucket, GrantRead=f"id={made['id']}")
        self.refused("AccessControlListNotSupported", 400, self.s3.put_bucket_acl, **grantee)
        rules = {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}
        self.s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=rules)
        self.s3.put_bucket_acl(**grantee)
        self.assertEqual(0, s3.list_objects_v2(Bucket=bucket)["KeyCount"])
        self.refused("AccessDenied", 403, s3.put_object, Bucket=bucket, Key="k", Body=b"x")
        grants = self.s3.get_bucket_acl(Bucket=bucket)["Grants"]
        self.assertIn((made["id"], "READ"), [(one["Grantee"].get("ID"), one["Permission"])
                                             for one in grants])  # fmt: skip

    def test_acl_of_an_object_has_all_read_it(self):
        bucket = self.new_bucket()
        put = dict(Bucket=bucket, Key="k", Body=b"x", ACL="public-read")
        self.refused("AccessControlListNotSupported", 400, self.s3.put_object, **put)
        rules = {"Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}]}
        self.s3.put_bucket_ownership_controls(Bucket=bucket, OwnershipControls=rules)
        self.refused("AccessDenied", 403, self.s3.put_object, **put)
        self.s3.delete_public_access_block(Bucket=bucket)
        self.s3.put_object(**put)
        self.assertEqual((200, b"x"), plain(bucket, "k")[::2])
        self.s3.put_object_acl(Bucket=bucket, Key="k", ACL="private")
        self.assertEqual(403, plain(bucket, "k")[0])
        made, s3 = new_user()
        self.s3.put_object_acl(Bucket=bucket, Key="k", GrantRead=f"id={made['id']}")
        self.assertEqual(b"x", s3.get_object(Bucket=bucket, Key="k")["Body"].read())
        shown = self.s3.get_object_acl(Bucket=bucket, Key="k")["Grants"]
        self.assertEqual([(made["id"], "READ")],
                         [(one["Grantee"]["ID"], one["Permission"]) for one in shown])  # fmt: skip

    def test_form_of_a_browser_puts_what_its_policy_allows(self):
        bucket = self.new_bucket()
        bounds = [["content-length-range", 1, 20], ["starts-with", "$key", "in/"]]
        # As with presigned URLs, botocore signs forms with version 2 by default.
        s3 = client(signature_version="s3v4")
        acl = {"acl": "bucket-owner-full-control"}
        form = s3.generate_presigned_post(bucket, "in/${filename}", acl, [acl, *bounds])

        def send(body, **fields):
            parts = {**form["fields"], **fields}
            text = "".join(
                f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                for name, value in parts.items()
            )
            text += '--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
            data = text.encode() + body + b"\r\n--B--\r\n"
            head = {"Content-Type": "multipart/form-data; boundary=B"}
            return plain(bucket, "", "POST", head, data)[0]

        self.assertEqual(204, send(b"hello"))
        self.assertEqual(b"hello", self.body(bucket, "in/a.txt"))
        self.assertEqual(400, send(b"x" * 21))
        self.assertEqual(403, send(b"hello", key="out/a.txt"))
        self.assertEqual(403, send(b"hello", acl="public-read"))
        self.assertEqual(["in/a.txt"], self.keys(bucket))

    def test_tags_of_a_bucket_are_kept(self):
        bucket = self.new_bucket()
        self.refused("NoSuchTagSet", 404, self.s3.get_bucket_tagging, Bucket=bucket)
        tags = [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}]
        self.s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
        self.assertEqual(tags, self.s3.get_bucket_tagging(Bucket=bucket)["TagSet"])
        self.s3.delete_bucket_tagging(Bucket=bucket)
        self.refused("NoSuchTagSet", 404, self.s3.get_bucket_tagging, Bucket=bucket)

    def test_scripts_of_other_sites_may_what_the_rules_say(self):
        bucket = self.new_bucket()
        self.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        rule = {"AllowedOrigins": ["http://*.example.com"], "AllowedMethods": ["GET", "PUT"],
                "AllowedHeaders": ["x-amz-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60}  # fmt: skip
        ask = {"Origin": "http://a.example.com", "Access-Control-Request-Method": "PUT",
               "Access-Control-Request-Headers": "x-amz-date"}  # fmt: skip
        self.assertEqual(403, plain(bucket, "k", "OPTIONS", ask)[0])
        self.s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [rule]})
        self.assertEqual([rule], self.s3.get_bucket_cors(Bucket=bucket)["CORSRules"])
        status, headers, _ = plain(bucket, "k", "OPTIONS", ask)
        self.assertEqual((200, ask["Origin"]), (status, headers["Access-Control-Allow-Origin"]))
        other = {**ask, "Origin": "http://example.org"}
        self.assertEqual(403, plain(bucket, "k", "OPTIONS", other)[0])
        url = self.s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
        self.assertTrue(url)
        status, headers, _ = plain(bucket, "k", headers={"Origin": ask["Origin"]})
        self.assertEqual((403, ask["Origin"]), (status, headers["Access-Control-Allow-Origin"]))
        self.s3.delete_bucket_cors(Bucket=bucket)
        self.assertEqual(403, plain(bucket, "k", "OPTIONS", ask)[0])
