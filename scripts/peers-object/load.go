// The load of scripts/peers-object.sh: the same S3 requests to several services in turns, and the CPU
// that all processes of each service use for them.
//
// A request is a signed HTTP/1.1 request (AWS4-HMAC-SHA256, the payload's SHA-256 in the signature, as
// SDKs sign over HTTP) on a kept connection of its worker. Hashes of contents are computed once. What is
// read is compared with what was written. Only the standard library is used.
package main

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	bucket = "peers"
	region = "us-east-1"
	// Different contents of objects of one size.
	contents = 16
	// Bytes that are read at random, for each size, and objects at most: as `craton bench object`.
	readBytes      = 64 << 20
	objectsReadMax = 10000
	// Objects from this size on are read in order.
	inOrderBytes = 1 << 20
	// Requests under way while objects are made.
	prepareDepth = 16
	requestMax   = 60 * time.Second
	// A connection that was idle for so long is opened again: services end idle ones, MinIO after 30 s.
	idleMax = 5 * time.Second
	// Microseconds of a clock tick: /proc counts in hundredths of a second on every Linux.
	tickUS = 10000
)

// process is one of a service.
type process struct {
	role string
	pid  int
}

// service is what is measured.
type service struct {
	name, version, endpoint, key, secret string
	processes                            []process
	connections                          []*connection
	next                                 map[int]int // Number of the next new object, by size.
	day                                  string
	dayKey                               []byte
	signing                              sync.Mutex
}

// cpuUS is the CPU that each role has used, user and system, of all threads.
func (s *service) cpuUS() (map[string]float64, error) {
	roles := map[string]float64{}
	for _, one := range s.processes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", one.pid))
		if err != nil {
			return nil, fmt.Errorf("%s: its %s, process %d, is gone", s.name, one.role, one.pid)
		}
		// The name may hold spaces: fields are counted from the closing parenthesis.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return nil, err
			}
			roles[one.role] += ticks * tickUS
		}
	}
	return roles, nil
}

func sum(roles map[string]float64) float64 {
	total := 0.0
	for _, us := range roles {
		total += us
	}
	return total
}

func ownCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64((usage.Utime.Sec+usage.Stime.Sec)*1000000 + usage.Utime.Usec + usage.Stime.Usec)
}

func mac(key []byte, text string) []byte {
	hash := hmac.New(sha256.New, key)
	hash.Write([]byte(text))
	return hash.Sum(nil)
}

func hashOf(text []byte) string {
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

func (s *service) keyOf(day string) []byte {
	s.signing.Lock()
	defer s.signing.Unlock()
	if s.day != day {
		key := mac([]byte("AWS4"+s.secret), day)
		for _, part := range []string{region, "s3", "aws4_request"} {
			key = mac(key, part)
		}
		s.day, s.dayKey = day, key
	}
	return s.dayKey
}

// head is a signed request up to its empty line.
func (s *service) head(method, path, payload string, length int) []byte {
	at := time.Now().UTC().Format("20060102T150405Z")
	day := at[:8]
	headers := "host:" + s.endpoint + "\nx-amz-content-sha256:" + payload + "\nx-amz-date:" + at + "\n"
	const names = "host;x-amz-content-sha256;x-amz-date"
	canonical := method + "\n" + path + "\n\n" + headers + "\n" + names + "\n" + payload
	scope := day + "/" + region + "/s3/aws4_request"
	text := "AWS4-HMAC-SHA256\n" + at + "\n" + scope + "\n" + hashOf([]byte(canonical))
	signature := hex.EncodeToString(mac(s.keyOf(day), text))
	return []byte(method + " " + path + " HTTP/1.1\r\n" + strings.ReplaceAll(headers, "\n", "\r\n") +
		"content-length: " + strconv.Itoa(length) + "\r\nauthorization: AWS4-HMAC-SHA256 Credential=" +
		s.key + "/" + scope + ", SignedHeaders=" + names + ", Signature=" + signature + "\r\n\r\n")
}

// connection of one worker. After a failed request it is of no more use.
type connection struct {
	stream net.Conn
	reader *bufio.Reader
	body   []byte
	used   time.Time
}

// ask sends a request and returns the answer's body, which is valid until the next request.
func (s *service) ask(worker int, method, path string, body []byte, hash string) ([]byte, error) {
	got, err := s.tryAsk(worker, method, path, body, hash)
	if err != nil {
		err = fmt.Errorf("%s: %s %s: %w", s.name, method, path, err)
	}
	return got, err
}

func (s *service) tryAsk(worker int, method, path string, body []byte, hash string) ([]byte, error) {
	c, now := s.connections[worker], time.Now()
	if c != nil && now.Sub(c.used) > idleMax {
		c.stream.Close()
		c = nil
	}
	if c == nil {
		stream, err := net.Dial("tcp", s.endpoint)
		if err != nil {
			return nil, err
		}
		c = &connection{stream: stream, reader: bufio.NewReaderSize(stream, 64<<10)}
		s.connections[worker] = c
	}
	c.used = now
	if err := c.stream.SetDeadline(now.Add(requestMax)); err != nil {
		return nil, err
	}
	// One system call for both.
	parts := net.Buffers{s.head(method, path, hash, len(body)), body}
	if _, err := parts.WriteTo(c.stream); err != nil {
		return nil, err
	}
	status, length, closes, err := c.answer()
	if err != nil {
		return nil, err
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err := io.ReadFull(c.reader, c.body); err != nil {
		return nil, err
	}
	if closes {
		c.stream.Close()
		s.connections[worker] = nil
	}
	if status < 200 || status > 299 {
		return nil, fmt.Errorf("%d: %.400s", status, c.body)
	}
	return c.body, nil
}

// answer reads the head of one: status, bytes of the body, and whether the connection ends with it.
func (c *connection) answer() (status, length int, closes bool, err error) {
	for first := true; ; first = false {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return 0, 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
				return 0, 0, false, fmt.Errorf("no answer of HTTP/1.1: %s", line)
			}
			if status, err = strconv.Atoi(string(line[9:12])); err != nil {
				return 0, 0, false, err
			}
		case len(line) == 0:
			return status, length, closes, nil
		case hasName(line, "content-length"):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[15:]))); err != nil {
				return 0, 0, false, err
			}
		case hasName(line, "transfer-encoding"):
			return 0, 0, false, fmt.Errorf("an answer %d without a length", status)
		case hasName(line, "connection"):
			closes = bytes.EqualFold(bytes.TrimSpace(line[11:]), []byte("close"))
		}
	}
}

func hasName(line []byte, name string) bool {
	return len(line) > len(name) && line[len(name)] == ':' && strings.EqualFold(string(line[:len(name)]), name)
}

// noise is the contents of one size, and their hashes.
type noise struct {
	bodies [contents][]byte
	hashes [contents]string
}

func noiseOf(size int) *noise {
	made := &noise{}
	random := rand.New(rand.NewSource(5))
	for n := range made.bodies {
		made.bodies[n] = make([]byte, size)
		random.Read(made.bodies[n])
		made.hashes[n] = hashOf(made.bodies[n])
	}
	return made
}

// load is the requests of one operation and size.
type load struct {
	op    string
	size  int
	count int // Objects that are read.
	noise *noise
}

func (l *load) path(kind string, n int) string {
	return fmt.Sprintf("/%s/%s-%d/%08d", bucket, kind, l.size, n)
}

func (l *load) put(s *service, worker int, kind string, n int) error {
	body, hash := l.noise.bodies[n%contents], l.noise.hashes[n%contents]
	_, err := s.ask(worker, "PUT", l.path(kind, n), body, hash)
	return err
}

func (l *load) get(s *service, worker, n int) error {
	path := l.path("get", n)
	got, err := s.ask(worker, "GET", path, nil, hashOf(nil))
	if err == nil && !bytes.Equal(got, l.noise.bodies[n%contents]) {
		err = fmt.Errorf("%s: %s is read otherwise than it was written", s.name, path)
	}
	return err
}

// workers runs `work` on some workers until each returns false or one fails.
func workers(depth int, work func(worker int) (bool, error)) error {
	var all sync.WaitGroup
	errors := make([]error, depth)
	for worker := range depth {
		all.Add(1)
		go func() {
			defer all.Done()
			for goOn := true; goOn && errors[worker] == nil; {
				goOn, errors[worker] = work(worker)
			}
		}()
	}
	all.Wait()
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the objects that are read.
func (l *load) prepare(s *service) error {
	var next atomic.Int64
	return workers(prepareDepth, func(worker int) (bool, error) {
		n := int(next.Add(1)) - 1
		if n >= l.count {
			return false, nil
		}
		return true, l.put(s, worker, "get", n)
	})
}

// turn is what one took.
type turn struct {
	Ops       int                `json:"ops"`
	Seconds   float64            `json:"seconds"`
	OpsS      float64            `json:"ops_s"`
	CPU       float64            `json:"cpu_us_per_op"`
	CPUByRole map[string]float64 `json:"cpu_us_per_op_by_role"`
	LoadCPU   float64            `json:"load_cpu_us_per_op"`
	Load      float64            `json:"load_average"`
	latencies []float64
	cpuUS     float64
}

// run keeps `depth` requests under way for a time.
func (l *load) run(s *service, depth int, length time.Duration) (*turn, error) {
	before, err := s.cpuUS()
	if err != nil {
		return nil, err
	}
	var next atomic.Int64
	next.Store(int64(s.next[l.size]))
	latencies := make([][]float64, depth)
	randoms := make([]*rand.Rand, depth)
	for worker := range randoms {
		randoms[worker] = rand.New(rand.NewSource(rand.Int63()))
	}
	own, began := ownCPU(), time.Now()
	err = workers(depth, func(worker int) (bool, error) {
		var err error
		started := time.Now()
		if started.Sub(began) >= length {
			return false, nil
		}
		n := int(next.Add(1)) - 1
		switch {
		case l.op == "put":
			err = l.put(s, worker, "put", n)
		case l.size >= inOrderBytes:
			err = l.get(s, worker, n%l.count)
		default:
			err = l.get(s, worker, randoms[worker].Intn(l.count))
		}
		latencies[worker] = append(latencies[worker], float64(time.Since(started).Nanoseconds())/1e3)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	own = ownCPU() - own
	after, err := s.cpuUS()
	if err != nil {
		return nil, err
	}
	s.next[l.size] = int(next.Load())
	made := &turn{Seconds: took.Seconds(), CPUByRole: map[string]float64{}, Load: loadAverage()}
	made.latencies = slices.Concat(latencies...)
	made.Ops = len(made.latencies)
	ops := float64(max(made.Ops, 1))
	for role, us := range after {
		made.CPUByRole[role] = (us - before[role]) / ops
	}
	made.cpuUS = sum(after) - sum(before)
	made.OpsS, made.CPU, made.LoadCPU = ops/took.Seconds(), made.cpuUS/ops, own/ops
	return made, nil
}

func loadAverage() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	value, _ := strconv.ParseFloat(first, 64)
	return value
}

// spread is least, middle and most of some values.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	middle := sorted[half]
	if len(sorted)%2 == 0 {
		middle = (sorted[half-1] + sorted[half]) / 2
	}
	return spread{sorted[0], middle, sorted[len(sorted)-1]}
}

func (s spread) text(digits int) string {
	return fmt.Sprintf("%.*f / %.*f / %.*f", digits, s.Min, digits, s.Median, digits, s.Max)
}

// row is a service's figures of one operation and size.
type row struct {
	Op          string             `json:"op"`
	Size        int                `json:"size"`
	Concurrency int                `json:"concurrency"`
	Service     string             `json:"service"`
	OpsS        spread             `json:"ops_s"`
	CPU         spread             `json:"cpu_us_per_op"`
	CPUByRole   map[string]float64 `json:"cpu_us_per_op_by_role"`
	MeanUS      float64            `json:"mean_us"`
	P99US       float64            `json:"p99_us"`
	// CPU beside its turns, in percent of a core: what goes on behind its answers, and what it uses idle.
	BesideCPU float64 `json:"cpu_beside_turns_percent"`
	LoadCPU   float64 `json:"load_cpu_us_per_op"`
	Turns     []*turn `json:"turns"`
}

// ratio is our figures to a peer's: of each round, in which their turns are neighbours.
type ratio struct {
	Op   string `json:"op"`
	Size int    `json:"size"`
	Peer string `json:"peer"`
	CPU  spread `json:"cpu"`
	Rate spread `json:"ops_s"`
	Aims []aim  `json:"aims"`
	ours *row
}

type aim struct {
	What    string  `json:"what"`
	Wanted  float64 `json:"wanted"`
	Reached float64 `json:"reached"`
	Met     bool    `json:"met"`
}

// aimsOf 4 KiB operations: CPU at most, requests a second at least.
var aimsOf = map[string]struct{ cpu, rate float64 }{
	"put radosgw": {1.0 / 10, 5},
	"get radosgw": {1.0 / 6, 3},
	"put minio":   {1.0 / 4, 0},
	"get minio":   {2.0 / 5, 0},
}

// measure runs all rounds of one operation and size.
func measure(l *load, services []*service, o *options) ([]*row, error) {
	for _, s := range services {
		// It opens connections; it is not counted.
		if _, err := l.run(s, o.concurrency, o.warm); err != nil {
			return nil, err
		}
	}
	all := make([][]*turn, len(services))
	begun := make([]float64, len(services))
	for i, s := range services {
		cpu, err := s.cpuUS()
		if err != nil {
			return nil, err
		}
		begun[i] = sum(cpu)
	}
	start := time.Now()
	for round := range o.turns {
		for step := range services {
			// Another one begins each round, so that none is always behind the same one.
			i := (round + step) % len(services)
			time.Sleep(o.pause)
			made, err := l.run(services[i], o.concurrency, o.length)
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], made)
			fmt.Fprintf(os.Stderr, "%s %d, round %d: %s %.0f/s, %.0f us\n",
				l.op, l.size, round+1, services[i].name, made.OpsS, made.CPU)
		}
	}
	took := time.Since(start).Seconds()
	rows := make([]*row, len(services))
	for i, s := range services {
		r := &row{Op: l.op, Size: l.size, Concurrency: o.concurrency, Service: s.name, Turns: all[i]}
		r.CPUByRole = map[string]float64{}
		var rates, cpus, latencies []float64
		ops, busy, used, own, total := 0.0, 0.0, 0.0, 0.0, 0.0
		for _, t := range all[i] {
			rates, cpus = append(rates, t.OpsS), append(cpus, t.CPU)
			latencies = append(latencies, t.latencies...)
			ops, busy, used = ops+float64(t.Ops), busy+t.Seconds, used+t.cpuUS
			own += t.LoadCPU * float64(t.Ops)
			for role, us := range t.CPUByRole {
				r.CPUByRole[role] += us * float64(t.Ops)
			}
		}
		for role := range r.CPUByRole {
			r.CPUByRole[role] /= ops
		}
		slices.Sort(latencies)
		for _, us := range latencies {
			total += us
		}
		r.OpsS, r.CPU = spreadOf(rates), spreadOf(cpus)
		r.MeanUS, r.P99US = total/ops, latencies[len(latencies)*99/100]
		r.LoadCPU = own / ops
		cpu, err := s.cpuUS()
		if err != nil {
			return nil, err
		}
		r.BesideCPU = (sum(cpu) - begun[i] - used) / 1e4 / (took - busy)
		rows[i] = r
	}
	return rows, nil
}

// ratiosOf compares the first row with each other one.
func ratiosOf(rows []*row) []*ratio {
	ours := rows[0]
	var made []*ratio
	for _, peer := range rows[1:] {
		var cpus, rates []float64
		for i, t := range peer.Turns {
			cpus = append(cpus, ours.Turns[i].CPU/t.CPU)
			rates = append(rates, ours.Turns[i].OpsS/t.OpsS)
		}
		r := &ratio{Op: ours.Op, Size: ours.Size, Peer: peer.Service, Aims: []aim{}, ours: ours}
		r.CPU, r.Rate = spreadOf(cpus), spreadOf(rates)
		if wanted, has := aimsOf[r.Op+" "+r.Peer]; has && r.Size == 4096 {
			r.Aims = append(r.Aims, aim{"cpu", wanted.cpu, r.CPU.Median, r.CPU.Median <= wanted.cpu})
			if wanted.rate > 0 {
				r.Aims = append(r.Aims, aim{"ops_s", wanted.rate, r.Rate.Median, r.Rate.Median >= wanted.rate})
			}
		}
		made = append(made, r)
	}
	return made
}

type options struct {
	concurrency, turns  int
	length, warm, pause time.Duration
}

// servicesOf reads a file with a line for each: name, version, endpoint, access key, secret and
// processes (ROLE=PID and a space between), with '|' between.
func servicesOf(path string) ([]*service, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []*service
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 6 {
			return nil, fmt.Errorf("%s: not six cells: %s", path, line)
		}
		s := &service{name: cells[0], version: cells[1], endpoint: cells[2], key: cells[3], secret: cells[4]}
		s.next, s.connections = map[int]int{}, make([]*connection, 256)
		for _, one := range strings.Fields(cells[5]) {
			role, text, _ := strings.Cut(one, "=")
			pid, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %s is no process", path, one)
			}
			s.processes = append(s.processes, process{role, pid})
		}
		all = append(all, s)
	}
	return all, nil
}

// freePorts prints some that nothing listens at now.
func freePorts(count int) error {
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		// Open until all are known, so that they differ.
		defer listener.Close()
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	}
	return nil
}

func show(rows []*row, ratios []*ratio) {
	for _, op := range []string{"put", "get"} {
		for _, r := range rows {
			if r.Op != op {
				continue
			}
			roles := []string{}
			for role := range r.CPUByRole {
				roles = append(roles, role)
			}
			slices.SortFunc(roles, func(a, b string) int { return int(1e3 * (r.CPUByRole[b] - r.CPUByRole[a])) })
			for i, role := range roles {
				roles[i] = fmt.Sprintf("%s %.0f", role, r.CPUByRole[role])
			}
			fmt.Printf("%-4s %8d  %-8s %22s %26s %9.0f %9.0f %7.1f %6.0f  %s\n", r.Op, r.Size, r.Service, r.OpsS.text(0),
				r.CPU.text(0), r.MeanUS, r.P99US, r.BesideCPU, r.LoadCPU, strings.Join(roles, ", "))
		}
		for _, r := range ratios {
			if r.Op != op {
				continue
			}
			fmt.Printf("%-4s %8d  %s to %s: CPU %s, ops/s %s\n", r.Op, r.Size, r.ours.Service, r.Peer, r.CPU.text(3), r.Rate.text(2))
			for _, a := range r.Aims {
				word := map[bool]string{true: "met", false: "MISSED"}[a.Met]
				fmt.Printf("%15s aim of %s: %.3f, reached %.3f: %s\n", "", a.What, a.Wanted, a.Reached, word)
			}
		}
	}
}

func main() {
	if err := tryMain(); err != nil {
		fmt.Fprintf(os.Stderr, "peers-object: %v\n", err)
		os.Exit(1)
	}
}

func tryMain() error {
	ports := flag.Int("ports", 0, "print so many free ports and end")
	file := flag.String("services", "", "file of services")
	missing := flag.String("missing", "", "file of services that are not measured, NAME: WHY")
	concurrency := flag.Int("concurrency", 8, "requests under way")
	turns := flag.Int("turns", 5, "rounds of turns")
	seconds := flag.Float64("seconds", 5, "of a turn")
	sizes := flag.String("sizes", "4096", "bytes of objects, with commas between")
	asJSON := flag.Bool("json", false, "print one JSON object")
	flag.Parse()
	if *ports > 0 {
		return freePorts(*ports)
	}
	length := time.Duration(*seconds * float64(time.Second))
	o := &options{*concurrency, *turns, length, min(length, 2*time.Second), time.Second / 2}
	services, err := servicesOf(*file)
	if err != nil {
		return err
	}
	lacking, err := os.ReadFile(*missing)
	if err != nil {
		return err
	}
	var rows []*row
	ratios := []*ratio{}
	for _, s := range services {
		if _, err := s.ask(0, "PUT", "/"+bucket, nil, hashOf(nil)); err != nil {
			return err
		}
	}
	for _, text := range strings.Split(*sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size < 1 {
			return fmt.Errorf("%s is no size", text)
		}
		made := noiseOf(size)
		count := min(max(readBytes/size, 1), objectsReadMax)
		for _, op := range []string{"put", "get"} {
			l := &load{op, size, count, made}
			if op == "get" {
				for _, s := range services {
					if err := l.prepare(s); err != nil {
						return err
					}
				}
			}
			found, err := measure(l, services, o)
			if err != nil {
				return err
			}
			rows, ratios = append(rows, found...), append(ratios, ratiosOf(found)...)
		}
	}
	if *asJSON {
		versions, absent := map[string]string{}, map[string]string{}
		for _, s := range services {
			versions[s.name] = s.version
		}
		for _, line := range strings.Split(strings.TrimSpace(string(lacking)), "\n") {
			if name, why, has := strings.Cut(line, ": "); has {
				absent[name] = why
			}
		}
		return json.NewEncoder(os.Stdout).Encode(map[string]any{
			"versions": versions, "not_measured": absent, "rows": rows, "ratios": ratios,
		})
	}
	for _, s := range services {
		fmt.Printf("%s: %s\n", s.name, s.version)
	}
	fmt.Print(string(lacking))
	fmt.Printf("Concurrency %d, %d turns of %.0f s each; least / median / most of turns.\n", o.concurrency, o.turns, *seconds)
	fmt.Printf("%-4s %8s  %-8s %22s %26s %9s %9s %7s %6s  %s\n", "what", "size", "service", "ops/s", "CPU us/op, all processes",
		"mean us", "p99 us", "beside%", "load", "CPU us/op by role")
	show(rows, ratios)
	return nil
}
