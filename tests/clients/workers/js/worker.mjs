// The AWS SDK for JavaScript behind the lines that tools.py sends: a line of JSON asks for one call, a line
// answers it. The environment has the endpoint and the key.

import { lookup } from "node:dns";
import { createReadStream, createWriteStream } from "node:fs";
import { Agent as HttpAgent } from "node:http";
import { Agent as HttpsAgent } from "node:https";
import { createInterface } from "node:readline";
import { pipeline } from "node:stream/promises";
import {
  DeleteObjectCommand,
  GetObjectCommand,
  paginateListObjectsV2,
  PutObjectCommand,
  S3Client,
} from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { createPresignedPost } from "@aws-sdk/s3-presigned-post";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";

const endpoint = process.env.AWS_ENDPOINT_URL;
const agent = {
  keepAlive: true,
  // Names below localhost are this machine, which not every resolver knows.
  lookup: (host, options, done) =>
    lookup(host.endsWith(".localhost") ? "127.0.0.1" : host, options, done),
};
const client = new S3Client({
  endpoint,
  // An endpoint that is an IP address has no virtual hosts.
  forcePathStyle: !new URL(endpoint).hostname.endsWith("localhost"),
  maxAttempts: 1,
  requestHandler: { httpAgent: new HttpAgent(agent), httpsAgent: new HttpsAgent(agent) },
});

async function listed(bucket, prefix) {
  const keys = [];
  for await (const page of paginateListObjectsV2({ client }, { Bucket: bucket, Prefix: prefix })) {
    keys.push(...(page.Contents ?? []).map((entry) => entry.Key));
  }
  return keys;
}

const calls = {
  // In parts, above their size; one request otherwise.
  async put({ bucket, key, path }) {
    const params = { Bucket: bucket, Key: key, Body: createReadStream(path) };
    await new Upload({ client, params }).done();
  },
  async create({ bucket, key, text }) {
    await client.send(
      new PutObjectCommand({ Bucket: bucket, Key: key, Body: text, IfNoneMatch: "*" }),
    );
  },
  async get({ bucket, key, path }) {
    const found = await client.send(new GetObjectCommand({ Bucket: bucket, Key: key }));
    await pipeline(found.Body, createWriteStream(path));
  },
  async range({ bucket, key, first, last }) {
    const range = { Bucket: bucket, Key: key, Range: `bytes=${first}-${last}` };
    const found = await client.send(new GetObjectCommand(range));
    return Buffer.from(await found.Body.transformToByteArray()).toString("hex");
  },
  list: ({ bucket, prefix }) => listed(bucket, prefix),
  async remove({ bucket, key }) {
    await client.send(new DeleteObjectCommand({ Bucket: bucket, Key: key }));
  },
  presign: ({ bucket, key }) =>
    getSignedUrl(client, new GetObjectCommand({ Bucket: bucket, Key: key }), { expiresIn: 60 }),
  form: ({ bucket, key }) =>
    createPresignedPost(client, {
      Bucket: bucket,
      Key: key,
      Conditions: [["content-length-range", 0, 1024]],
      Expires: 60,
    }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...ask } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await calls[call](ask)) ?? null };
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}` };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
