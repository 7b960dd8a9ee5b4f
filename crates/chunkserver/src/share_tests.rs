use std::rc::Rc;

use runtime::Class;
use runtime::sim::Sim;

use super::*;

const MIB: u64 = 1 << 20;

fn run(test: impl AsyncFnOnce(Env, Rc<DiskShare>)) {
    run_with(BackgroundShare::default(), test);
}

fn run_with(limits: BackgroundShare, test: impl AsyncFnOnce(Env, Rc<DiskShare>)) {
    let sim = Sim::new(1);
    sim.run(async {
        let env = sim.boot(sim.add_host("server"));
        test(env, Rc::new(DiskShare::new(limits))).await;
    })
    .unwrap();
    sim.close();
}

const TICK: Duration = Duration::from_millis(10);

/// Background operations of a tick each that end within a time.
async fn count_background(env: &Env, share: &DiskShare, urgency: Urgency, time: Duration) -> u64 {
    let end = env.now() + time;
    let mut count = 0;
    while env.now() < end {
        share.background(env, (urgency, MIB), async { env.sleep(TICK).await }).await.unwrap();
        count += 1;
    }
    count
}

/// Foreground operations that take what `took` says beside background work or without, for ever.
fn keep_busy(env: &Env, share: &Rc<DiskShare>, took: impl Fn(bool) -> Duration + 'static) {
    let (env, share) = (env.clone(), share.clone());
    env.clone().spawn(Class::Foreground, "foreground", async move {
        loop {
            let time = took(share.active.get());
            share.foreground(&env, async { env.sleep(time).await }).await;
            env.sleep(Duration::from_millis(1)).await;
        }
    });
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn background_work_has_a_quarter_of_a_busy_disk_and_nearly_all_of_an_idle_one() {
    run(async |env, share| {
        let idle = count_background(&env, &share, Urgency::Copy, 10 * SECOND).await;
        assert!((880..=920).contains(&idle), "{idle} of 1000");
        keep_busy(&env, &share, |_| Duration::from_millis(1));
        env.sleep(SECOND).await;
        let busy = count_background(&env, &share, Urgency::Copy, 10 * SECOND).await;
        assert!((240..=260).contains(&busy), "{busy} of 1000");
        let urgent = count_background(&env, &share, Urgency::NoMargin, 10 * SECOND).await;
        assert!((490..=510).contains(&urgent), "{urgent} of 1000");
    });
}

#[test]
fn background_work_gives_way_where_the_foreground_suffers_but_for_the_floor() {
    run(async |env, share| {
        // Half again as slow beside background work.
        keep_busy(&env, &share, |beside| Duration::from_micros(if beside { 1500 } else { 1000 }));
        env.sleep(10 * SECOND).await;
        let before = share.per_mille();
        let suffering = count_background(&env, &share, Urgency::Copy, 30 * SECOND).await;
        assert_eq!(before, 250);
        assert!(share.per_mille() < 30, "{} of 1000", share.per_mille());
        // Two operations of 1 MiB a second are the floor.
        assert!((60..=300).contains(&suffering), "{suffering} in 30 s");
        let urgent = count_background(&env, &share, Urgency::NoMargin, 10 * SECOND).await;
        assert!((440..=510).contains(&urgent), "{urgent} of 1000");
    });
    run(async |env, share| {
        keep_busy(&env, &share, |_| Duration::from_millis(1));
        count_background(&env, &share, Urgency::Copy, 30 * SECOND).await;
        assert_eq!(share.per_mille(), 250, "it does not suffer");
    });
}

#[test]
fn the_most_urgent_go_first_and_too_many_are_refused() {
    run(async |env, share| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let kinds = [Urgency::Scrub, Urgency::Scrub, Urgency::Copy, Urgency::NoMargin];
        for (number, urgency) in kinds.into_iter().chain([Urgency::Copy; 5]).enumerate() {
            let (env, share, order) = (env.clone(), share.clone(), order.clone());
            env.clone().spawn(Class::Background, "copy", async move {
                env.sleep(Duration::from_micros(number as u64)).await;
                let work = async {
                    order.borrow_mut().push(number);
                    env.sleep(TICK).await;
                };
                share.background(&env, (urgency, MIB), work).await.unwrap();
            });
        }
        env.sleep(Duration::from_millis(1)).await;
        let ninth = share.background(&env, (Urgency::Copy, MIB), async {}).await;
        assert_eq!(ninth, Err(TooManyWait));
        env.sleep(SECOND).await;
        // The first one had begun before others came.
        assert_eq!(*order.borrow(), [0, 3, 2, 4, 5, 6, 7, 8, 1]);
    });
}

#[test]
fn a_turn_that_is_given_up_is_free() {
    run(async |env, share| {
        let work = share.background(&env, (Urgency::Copy, MIB), std::future::pending::<()>());
        assert!(env.timeout(TICK, work).await.is_err());
        let (waiting, other) = (share.clone(), env.clone());
        env.spawn(Class::Background, "held", async move {
            let held = async { other.sleep(SECOND).await };
            waiting.background(&other, (Urgency::Copy, MIB), held).await.unwrap();
        });
        env.sleep(TICK).await;
        let work = share.background(&env, (Urgency::NoMargin, MIB), async {});
        assert!(env.timeout(TICK, work).await.is_err());
        assert!(share.waiting.borrow().is_empty());
        share.background(&env, (Urgency::Scrub, MIB), async {}).await.unwrap();
    });
}
