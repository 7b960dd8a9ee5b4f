//! Calls that an executor does not take.

use std::sync::mpsc::sync_channel;

use super::*;

/// It counted as under way for ever, and the end of the volume waited for it.
#[test]
fn call_that_the_executor_does_not_take_is_refused() {
    let config = RuntimeConfig { huge_pages: false, ..RuntimeConfig::named("full") };
    let cores = Cores::start(&config, 1).expect("an executor");
    let executor = cores.handles()[0].clone();
    let volume = Volume { cores, bytes: 0, under_way: Arc::default() };
    let ((begins, begun), (end, ended)) = (sync_channel(1), sync_channel::<()>(1));
    drop(executor.spawn(move |_| {
        begins.send(()).expect("the test waits");
        let _ = ended.recv(); // Until it is dropped.
        async {}
    }));
    begun.recv().expect("it runs");
    while executor.spawn(|_| async {}).now_or_never().is_none() {}
    let refused = volume.start(Call::Flush, 0, |_| ()).expect_err("the inbox is full");
    assert_eq!(refused.errno, errno::EAGAIN);
    drop(end);
    while executor.spawn(|_| async {}).wait().is_err() {}
    volume.close().expect("no call is under way");
}
