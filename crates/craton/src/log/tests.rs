//! Logs of roles and of gateways' requests.

use super::*;

#[test]
fn files_are_rotated_between_lines() {
    let dir = crate::output::test_dir("log");
    let mut log = Rotated::open(&dir, FILE, 100, 2).expect("it opens");
    for index in 0..50 {
        log.write_all(format!("line {index:03}\n").as_bytes()).expect("it is written");
    }
    let names: Vec<_> = std::fs::read_dir(&dir).expect("it lists").collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("it reads");
    assert!(read(FILE).ends_with("line 049\n"));
    assert!(read("craton.jsonl.1").starts_with("line "));
    assert!(read("craton.jsonl.2").len() <= 100);
    std::fs::remove_dir_all(dir).expect("it goes");
}

/// A file on a disk that takes nothing until it is let go on.
struct Hung {
    go_on: Receiver<()>,
    written: SyncSender<Vec<u8>>,
}

impl Write for Hung {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.go_on.recv(); // For ever, once nothing holds it up.
        self.written.send(bytes.to_vec()).expect("the test reads");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn disk_that_hangs_holds_up_no_line_and_those_without_room_are_counted() {
    let (hold, go_on) = sync_channel(0);
    let (written, read) = sync_channel(2 * QUEUE);
    let mut lines = Lines::start(Hung { go_on, written }).expect("it starts");
    for index in 0..QUEUE + 10 {
        lines.write_all(format!("{index}").as_bytes()).expect("nothing waits");
    }
    // One is being written, as many as there is room for wait.
    let lost = lines.lost.load(Ordering::Relaxed);
    assert!((9..=10).contains(&lost), "{lost} lines are lost");
    lines.wait(Duration::from_millis(1));
    drop(hold);
    while lines.queue.try_send(Message::Line(b"last".to_vec())).is_err() {
        std::thread::yield_now();
    }
    lines.wait(Duration::from_secs(60));
    let written: Vec<_> = read.try_iter().collect();
    assert_eq!(written.last().map(Vec::as_slice), Some(&b"last"[..]));
    assert_eq!(written.len() as u64, (QUEUE + 11) as u64 - lost);
    assert_eq!(lines.lost.load(Ordering::Relaxed), 0, "they were reported");
}

#[test]
fn what_was_sent_to_the_access_log_is_written_before_it_ends() {
    let dir = crate::output::test_dir("access");
    let registry = Registry::new();
    let log = start_access(&dir, &Logging::default(), &registry).expect("it opens");
    let sent: Vec<String> = (0..1000).map(|index| format!("line {index}\n")).collect();
    let sink = log.sink();
    sent.iter().for_each(|line| sink(line.clone()));
    drop((log, sink));
    let written = std::fs::read_to_string(dir.join(ACCESS_FILE)).expect("it reads");
    assert_eq!(written, sent.concat());
    assert!(registry.expose().contains("craton_s3_access_log_lost_total 0"));
    std::fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let dir = crate::output::test_dir("access-full");
    let full = OpenOptions::new().write(true).open("/dev/full").expect("it opens");
    let mut file = Rotated::open(&dir, ACCESS_FILE, 1 << 20, 1).expect("it opens");
    file.file = full;
    let lost = Registry::new().shared_counter("lost_total", "Lost.", &[]);
    let (lines, queue) = sync_channel(3);
    (0..3).for_each(|_| lines.send("line\n".to_owned()).expect("room"));
    drop(lines);
    write_access(file, &queue, &lost);
    assert_eq!(lost.get(), 3);
    std::fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn file_that_cannot_be_rotated_is_written_on_and_rotated_later() {
    let dir = crate::output::test_dir("log-stuck");
    let mut log = Rotated::open(&dir, FILE, 100, 2).expect("it opens");
    let old = |index: u32| dir.join(format!("{FILE}.{index}"));
    std::fs::write(old(1), "older\n").expect("it is written");
    // No file can take this name.
    std::fs::create_dir_all(old(2).join("x")).expect("it is made");
    let mut write = |count: usize| {
        for _ in 0..count {
            log.write_all(b"line 6789\n").expect("it is written");
        }
    };
    let read = |path: &Path| std::fs::read_to_string(path).expect("it reads");
    write(15);
    assert_eq!(read(&dir.join(FILE)).lines().count(), 15);
    assert_eq!(read(&old(1)), "older\n", "nothing has moved");
    std::fs::remove_dir_all(old(2)).expect("it goes");
    // After as much again as a file has.
    write(4);
    assert_eq!(read(&old(1)), "older\n", "it is not tried at each line");
    write(2);
    assert_eq!(read(&old(2)), "older\n");
    assert_eq!(read(&old(1)).lines().count(), 20);
    assert_eq!(read(&dir.join(FILE)), "line 6789\n");
    std::fs::remove_dir_all(dir).expect("it goes");
}

/// The next file cannot be made where this directory is.
#[test]
fn older_files_stay_where_no_new_one_can_be_made() {
    let dir = crate::output::test_dir("log-full");
    let mut log = Rotated::open(&dir, FILE, 20, 2).expect("it opens");
    for index in 1..=2 {
        std::fs::write(dir.join(format!("{FILE}.{index}")), format!("{index}")).expect("written");
    }
    std::fs::create_dir(dir.join(format!("{FILE}.new"))).expect("it is made");
    for _ in 0..20 {
        log.write_all(b"line 6789\n").expect("it is written");
    }
    for index in 1..=2 {
        let old = std::fs::read_to_string(dir.join(format!("{FILE}.{index}")));
        assert_eq!(old.expect("it is there"), format!("{index}"));
    }
    std::fs::remove_dir_all(dir).expect("it goes");
}
