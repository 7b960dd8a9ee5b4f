// The AWS SDK for Go behind the lines that tools.py sends: a line of JSON asks for one call, a line answers
// it. The environment has the endpoint and the key.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

type ask struct {
	Call, Bucket, Key, Path, Prefix, Text string
	First, Last                           int64
}

type answer struct {
	Value any    `json:"value"`
	Error string `json:"error,omitempty"`
}

func call(client *s3.Client, ask ask) (any, error) {
	ctx := context.Background()
	bucket, key := aws.String(ask.Bucket), aws.String(ask.Key)
	switch ask.Call {
	case "put": // In parts, above their size; one request otherwise.
		source, err := os.Open(ask.Path)
		if err != nil {
			return nil, err
		}
		defer source.Close()
		_, err = manager.NewUploader(client).Upload(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: source})
		return nil, err
	case "create":
		input := &s3.PutObjectInput{
			Bucket: bucket, Key: key, Body: strings.NewReader(ask.Text), IfNoneMatch: aws.String("*"),
		}
		_, err := client.PutObject(ctx, input)
		return nil, err
	case "get":
		sink, err := os.Create(ask.Path)
		if err != nil {
			return nil, err
		}
		defer sink.Close()
		_, err = manager.NewDownloader(client).Download(ctx, sink, &s3.GetObjectInput{Bucket: bucket, Key: key})
		return nil, err
	case "range":
		wanted := aws.String(fmt.Sprintf("bytes=%d-%d", ask.First, ask.Last))
		found, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key, Range: wanted})
		if err != nil {
			return nil, err
		}
		defer found.Body.Close()
		body, err := io.ReadAll(found.Body)
		return hex.EncodeToString(body), err
	case "list":
		keys := []string{}
		input := &s3.ListObjectsV2Input{Bucket: bucket, Prefix: aws.String(ask.Prefix)}
		pages := s3.NewListObjectsV2Paginator(client, input)
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, err
			}
			for _, entry := range page.Contents {
				keys = append(keys, *entry.Key)
			}
		}
		return keys, nil
	case "remove":
		_, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: bucket, Key: key})
		return nil, err
	case "presign":
		input := &s3.GetObjectInput{Bucket: bucket, Key: key}
		signed, err := s3.NewPresignClient(client).PresignGetObject(ctx, input, s3.WithPresignExpires(time.Minute))
		if err != nil {
			return nil, err
		}
		return signed.URL, nil
	}
	return nil, fmt.Errorf("no call %s", ask.Call)
}

// Names below localhost are this machine, which not every resolver knows.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && strings.HasSuffix(host, ".localhost") {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func main() {
	overHTTP := &http.Client{Transport: &http.Transport{DialContext: dial}}
	settings, err := config.LoadDefaultConfig(
		context.Background(), config.WithRetryMaxAttempts(1), config.WithHTTPClient(overHTTP))
	if err != nil {
		panic(err)
	}
	endpoint, err := url.Parse(os.Getenv("AWS_ENDPOINT_URL"))
	if err != nil {
		panic(err)
	}
	client := s3.NewFromConfig(settings, func(options *s3.Options) {
		// An endpoint that is an IP address has no virtual hosts.
		options.UsePathStyle = !strings.HasSuffix(endpoint.Hostname(), "localhost")
	})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var ask ask
		if err := json.Unmarshal(lines.Bytes(), &ask); err != nil {
			panic(err)
		}
		value, err := call(client, ask)
		said := answer{Value: value}
		if err != nil {
			said.Error = err.Error()
		}
		if err := out.Encode(said); err != nil {
			panic(err)
		}
	}
}
