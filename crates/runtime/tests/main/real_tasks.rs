//! Timers, wakes from other threads, helpers, the slice watch, handles.

use std::time::Duration;

use runtime::{Class, Cores, PollPolicy, Refused, RuntimeConfig};

use crate::support::{runtime, runtime_with};

#[test]
fn timers_fire_in_order_and_not_early() {
    for poll in [PollPolicy::Never, PollPolicy::Adaptive { max_us: 100 }, PollPolicy::Always] {
        let runtime = runtime_with(poll);
        let env = runtime.env().clone();
        runtime.block_on(async {
            let fired = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
            let tasks: Vec<_> = [30u64, 10, 20, 0, 10]
                .into_iter()
                .map(|wait| {
                    let (env, fired) = (env.clone(), fired.clone());
                    env.clone().spawn(Class::Foreground, "timer", async move {
                        let started = env.now();
                        let wait = Duration::from_millis(wait);
                        env.sleep(wait).await;
                        assert!(env.now() - started >= wait);
                        fired.borrow_mut().push(wait.as_millis());
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*fired.borrow(), [0, 10, 10, 20, 30]);
            let slow = env.sleep(Duration::from_secs(60));
            assert!(env.timeout(Duration::from_millis(5), slow).await.is_err());
        });
    }
}

/// A spin that ends at the timer's time is followed by no sleep.
#[test]
fn timers_of_an_executor_that_never_sleeps_fire_in_time() {
    let runtime = runtime_with(PollPolicy::Always);
    let env = runtime.env().clone();
    // The machine may take the core away for a while, not each time.
    let took = (0..3).map(|_| {
        runtime.block_on(async {
            let started = env.now();
            env.sleep(Duration::from_millis(200)).await;
            env.now() - started
        })
    });
    let took = took.min().expect("three times");
    assert!(took < Duration::from_millis(300), "200 ms took {took:?}");
}

/// An executor that has nothing to do wakes for its timers and for nothing else. The cost of a wake
/// depends on the machine, the number of wakes does not.
#[test]
fn idle_executors_sleep() {
    const TICKS: u64 = 20;
    let cores = Cores::start(&RuntimeConfig::named("test"), 4).unwrap();
    // Heartbeats of an idle cluster.
    let beating: Vec<_> = cores
        .handles()
        .iter()
        .map(|handle| {
            handle.spawn(|env| async move {
                for _ in 0..TICKS {
                    env.sleep(Duration::from_millis(25)).await;
                }
            })
        })
        .collect();
    for task in beating {
        task.wait().unwrap();
    }
    for handle in cores.handles() {
        let stats = handle.stats();
        // One at its start, one in which the task arrives, and a timer that is early by a round.
        assert!((1..=2 * TICKS + 2).contains(&stats.sleeps), "{stats:?}");
        assert!(stats.spins == 0 && stats.enters <= 2 * stats.sleeps, "{stats:?}");
    }
}

#[test]
fn other_threads_reach_an_executor() {
    for poll in [PollPolicy::Never, PollPolicy::Adaptive { max_us: 100 }] {
        let config = RuntimeConfig { poll, ..RuntimeConfig::named("test") };
        let cores = Cores::start(&config, 2).unwrap();
        let handles = cores.handles().to_vec();
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let handles = handles.clone();
                let work = move || {
                    for index in 0..500u64 {
                        let handle = &handles[(index % 2) as usize];
                        let task = handle.spawn(move |env| async move {
                            env.yield_now().await;
                            thread * 1000 + index
                        });
                        assert_eq!(task.wait(), Ok(thread * 1000 + index));
                    }
                };
                std::thread::Builder::new().spawn(work).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // From one executor to the other and back.
        let there = handles[1].clone();
        let round = handles[0].spawn(move |_| async move {
            let mut sum = 0;
            for index in 0..1000 {
                sum += there.spawn(move |_| async move { index }).await.unwrap();
            }
            sum
        });
        assert_eq!(round.wait(), Ok(499_500));
        cores.stop();
        assert_eq!(handles[0].spawn(|_| async {}).wait(), Err(Refused::Stopped));
    }
}

#[test]
fn a_stop_ends_tasks_and_their_waiters() {
    let cores = Cores::start(&RuntimeConfig::named("test"), 1).unwrap();
    let handle = cores.handles()[0].clone();
    let task = handle.spawn(|env| async move {
        env.sleep(Duration::from_secs(3600)).await;
    });
    assert!(task.wait_timeout(Duration::from_millis(20)).is_none());
    let task = handle.spawn(|_| std::future::pending::<()>());
    let stopping = handle.clone();
    let stop = std::thread::Builder::new().spawn(move || stopping.stop()).unwrap();
    assert_eq!(task.wait(), Err(Refused::Stopped));
    stop.join().unwrap();
    drop(cores);
}

#[test]
fn helpers_run_many_and_report_panics() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..3000u64)
            .map(|index| {
                let env = env.clone();
                env.clone().spawn(Class::Foreground, "ask", async move {
                    env.blocking("square", move || index * index).await
                })
            })
            .collect();
        for (index, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await, Ok((index * index) as u64));
        }
        // A caller that goes leaves the work to run, or not to begin.
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let (go, gone) = std::sync::mpsc::sync_channel::<()>(1);
        let mut left = Box::pin(env.blocking("left", move || {
            gone.recv().unwrap();
            sender.send(1).unwrap();
        }));
        assert!(futures_util::poll!(&mut left).is_pending());
        drop(left);
        go.send(()).unwrap();
        let got = env.blocking("wait", move || receiver.recv().unwrap()).await;
        assert_eq!(got, 1);
    });
    let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(env.blocking("bad", || panic!("on purpose")))
    }));
    assert!(panicking.is_err());
}

#[test]
fn two_jobs_for_one_idle_helper_run_at_once() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        env.blocking("first", || {}).await;
        env.sleep(Duration::from_millis(100)).await; // Its thread is idle.
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let long = env.blocking("long", move || ended.recv_timeout(Duration::from_secs(2)).is_ok());
        let short = env.blocking("short", move || end.send(()).is_ok());
        let (long, _) = futures_util::join!(long, short);
        assert!(long, "the short job waits for the end of the long one");
    });
}

#[test]
fn a_task_over_its_slice_is_named() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        // A poll during which the machine took the CPU away does not count.
        let named = || runtime.handle().stats().overruns.contains_key("hog");
        while !named() {
            let hog = env.clone();
            env.spawn(Class::Foreground, "hog", async move {
                let started = hog.now();
                while hog.now() - started < Duration::from_millis(20) {
                    std::hint::spin_loop();
                }
            })
            .await
            .unwrap();
        }
        env.spawn(Class::Foreground, "polite", async {}).await.unwrap();
    });
    let overruns = runtime.handle().stats().overruns;
    let hog = overruns.get("hog").expect("named");
    assert!(hog.count >= 1 && hog.longest >= Duration::from_millis(20), "{overruns:?}");
    assert!(!overruns.contains_key("polite"), "{overruns:?}");
}

#[test]
fn every_class_gets_its_share() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let counts = std::rc::Rc::new(std::cell::RefCell::new([0u32; 3]));
        let classes = [Class::Control, Class::Foreground, Class::Background];
        let tasks: Vec<_> = classes
            .into_iter()
            .enumerate()
            .map(|(index, class)| {
                let (env, counts) = (env.clone(), counts.clone());
                env.clone().spawn(class, "busy", async move {
                    loop {
                        counts.borrow_mut()[index] += 1;
                        env.yield_now().await;
                    }
                })
            })
            .collect();
        while counts.borrow()[0] < 10_000 {
            env.sleep(Duration::from_millis(1)).await;
        }
        tasks.iter().for_each(runtime::JoinHandle::abort);
        let [control, foreground, background] = *counts.borrow();
        assert!(control > 4 * foreground, "{counts:?}");
        assert!(foreground * 40 > control && background * 40 > control, "{counts:?}");
    });
}

#[test]
fn an_aborted_task_drops_what_it_has() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let kept = std::rc::Rc::new(());
        let held = kept.clone();
        let task = env.spawn(Class::Foreground, "wait", async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        env.yield_now().await;
        assert_eq!(std::rc::Rc::strong_count(&kept), 2);
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(std::rc::Rc::strong_count(&kept), 1);
    });
}

/// Set when this test runs in a time namespace whose boot-time clock is ahead.
const AHEAD: &str = "CRATON_TEST_BOOTTIME_AHEAD";
/// By so much, seconds: longer than any machine runs.
const AHEAD_S: u64 = 1 << 31;

/// Leases are measured by this clock: who was suspended with its host has none left.
#[test]
fn clock_goes_on_while_the_host_is_suspended() {
    if std::env::var_os(AHEAD).is_some() {
        assert!(runtime().env().now().as_nanos() / 1_000_000_000 > AHEAD_S);
        return;
    }
    let exe = std::env::current_exe().expect("it runs");
    let mut command = std::process::Command::new("unshare");
    command.args(["--time", "--boottime", &AHEAD_S.to_string(), "--fork"]).arg(exe);
    command.args(["--exact", "real_tasks::clock_goes_on_while_the_host_is_suspended"]);
    let output = command.env(AHEAD, "1").output().unwrap_or_else(|error| {
        panic!("unshare is not installed: run scripts/prepare.sh ({error})")
    });
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if text[1].contains("unshare:") {
        return println!("skipped: {}", text[1]);
    }
    assert!(output.status.success() && text[0].contains("1 passed"), "{text:?}");
}
