//! Files on their way out of the cluster.

use super::*;

#[test]
fn parts_of_other_runs_are_removed_unless_they_are_locked() {
    let dir = crate::output::test_dir("get-parts");
    let to = Beneath::open(&dir).expect("it opens");
    let hash = format!("{:016x}", 7);
    // By a number that is drawn, and as versions without locks named them; no process has this number.
    let names =
        [format!(".a.0123456789abcdef-{hash}{PART}"), format!(".b.4000000000-{hash}{PART}")];
    let is_there = || names.clone().map(|name| dir.join(name).exists());
    for name in &names {
        std::fs::write(dir.join(name), "part").expect("it is written");
    }
    let locked = names.clone().map(|name| {
        let file = File::open(dir.join(name)).expect("it opens");
        file.lock().expect("it is free");
        file
    });
    clear_left(&to, Path::new(""), PART).expect("it reads");
    assert_eq!(is_there(), [true, true], "of runs that go on");
    drop(locked);
    clear_left(&to, Path::new(""), PART).expect("it reads");
    assert_eq!(is_there(), [false, false], "of runs that are over");
    std::fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn names_of_no_part_stay() {
    let dir = crate::output::test_dir("get-names");
    let to = Beneath::open(&dir).expect("it opens");
    let own = std::process::id();
    let names = [
        format!(".a.{own}-0123456789abcdef{PART}"),
        format!(".a.0123456789abcdeg-0123456789abcdef{PART}"),
        format!("a.0123456789abcdef-0123456789abcdef{PART}"),
        format!(".a{PART}"),
    ];
    names.iter().for_each(|name| std::fs::write(dir.join(name), "").expect("it is written"));
    clear_left(&to, Path::new(""), PART).expect("it reads");
    assert_eq!(to.names(Path::new("")).expect("it lists").len(), names.len());
    std::fs::remove_dir_all(dir).expect("it goes");
}

#[test]
fn links_are_removed_unless_their_process_goes_on() {
    let dir = crate::output::test_dir("get-links");
    let to = Beneath::open(&dir).expect("it opens");
    let own = std::process::id();
    let [kept, left] = [own, 4_000_000_000].map(|pid| format!(".l.{pid}-0{PART}"));
    for name in [&kept, &left] {
        std::os::unix::fs::symlink("x", dir.join(name)).expect("it is made");
    }
    clear_left(&to, Path::new(""), PART).expect("it reads");
    assert_eq!(to.names(Path::new("")).expect("it lists"), [kept]);
    std::fs::remove_dir_all(dir).expect("it goes");
}
