//! Orders to copy that take longer than masters wait, or than rights last.

use chunkserver::BackgroundShare;

use super::*;

const LEN: u32 = 4_000_000;

/// With servers whose background work has so many bytes a second.
fn check_slow(bytes_per_s: u64, test: impl AsyncFnOnce(&Bed)) {
    let sim = Sim::new(7);
    sim.run(async {
        let share = BackgroundShare { busy: 0, idle: 0, urgent: 0, floor_bytes_per_s: bytes_per_s };
        let key = Some(ClusterKey::new([7; 32]));
        let bed = Bed::start_as(&sim, 3, key, |config| config.background = share).await;
        test(&bed).await;
    })
    .unwrap();
    sim.close();
}

impl Bed {
    async fn fill(&self, server: usize) {
        for at in (0..LEN).step_by(1_000_000) {
            self.append(server, at, &vec![at as u8; 1_000_000], 0).await.unwrap();
        }
    }

    /// Makes another chunk.
    async fn fill_other(&self, server: usize, chunk: ChunkId) -> Token {
        let at = AppendAt { chunk, epoch: EPOCH, base: BASE, offset: 0 };
        let mut sectors = vec![0; 2 * 4096];
        format_append(at, &[1; 5000], &mut sectors);
        let request = DataRequest::Append(AppendRequest {
            at: ChunkRef { chunk, ..self.at(server) },
            epoch: EPOCH,
            base: BASE,
            offset: 0,
            len: 5000,
            committed: 0,
            create: true,
            purpose: Purpose::Data,
        });
        let token = self.key.issue(chunk, Rights::ALL, EPOCH, IssuerTime::wall(u64::MAX));
        let sectors = self.env.pool().copy_of(&sectors).unwrap();
        self.data_with(server, request, Some(sectors), token).await.unwrap();
        token
    }

    /// The answer to an order, of a master that waits for so long.
    async fn order(
        &self,
        server: usize,
        order: ChunkserverRequest,
        wait: Duration,
    ) -> Option<Result<ChunkserverReply, ControlError>> {
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Background,
            flow: 0,
            trace: TraceId::new(2),
            token: Token::NONE,
            body: ControlRequest::Chunkserver(order).encode(),
            payload: None,
        };
        let answer = self.endpoint.call(self.servers[server].0, request, wait).await.ok()?;
        if answer.status != 0 {
            return Some(Err(ControlError::decode(&answer.body).unwrap()));
        }
        match ControlReply::decode(&answer.body).unwrap() {
            ControlReply::Chunkserver(reply) => Some(Ok(reply)),
            other => panic!("{other:?}"),
        }
    }
}

/// To read the copy through takes 4 s, and no order waits so long: the next one takes over what was read
/// for the one before. The one behind it reads again.
#[test]
fn a_copy_that_is_verified_slowly_is_whole_after_some_orders() {
    check_slow(1 << 20, async |bed| {
        bed.fill(0).await;
        bed.seal(0, LEN).await;
        let begun = bed.env.now();
        let until_whole = async || loop {
            let waited = bed.env.now() - begun;
            assert!(waited < Duration::from_secs(120), "no order ends");
            let order = bed.replicate(1, &[0], LEN);
            match bed.order(1, order, Duration::from_secs(3)).await {
                Some(Ok(ChunkserverReply::Replicated { stat, bytes })) => return (stat, bytes),
                Some(Ok(other)) => panic!("{other:?}"),
                Some(Err(error)) => assert_eq!(error.kind, base::Kind::Retry, "{error}"),
                None => {}
            }
            bed.env.sleep(Duration::from_millis(300)).await;
        };
        let (stat, bytes) = until_whole().await;
        assert_eq!((stat.state, stat.len, bytes), (ReplicaState::Sealed, LEN, 0));
        // Damage is met by the order behind it.
        bed.stores[1].spoil(3_000_000);
        let order = bed.replicate(1, &[0], LEN);
        let error = bed.order(1, order, Duration::from_secs(9)).await.unwrap().unwrap_err();
        assert_eq!(error.kind, base::Kind::Corrupt, "{error}");
    });
}

/// Masters take "no source" for a loss.
#[test]
fn a_copy_whose_right_to_read_has_run_out_is_to_be_ordered_again() {
    check(2, async |bed| {
        bed.append(0, 0, &[1; 5000], 0).await.unwrap();
        bed.seal(0, 5000).await;
        let token = bed.key.issue(CHUNK, Rights::READ, Epoch::NONE, IssuerTime::wall(1)).0;
        let order = bed.to_copy(1, CopyOrder { token, ..bed.copy_from(&[0], 5000) });
        let error = bed.control(1, order).await.unwrap_err();
        assert_eq!(error.kind, base::Kind::Retry, "{error}");
    });
}

/// Copies that wait for their share of the disk, or for sources, take no room from those for which a
/// recovery waits.
#[test]
fn copies_that_wait_leave_room_for_recovery() {
    check(3, async |bed| {
        bed.append(2, 0, &[1; 5000], 0).await.unwrap();
        let mut orders = Vec::new();
        for id in 0..20 {
            let other = ChunkId::new(0x1000 + id);
            let rights = bed.fill_other(0, other).await;
            let (chunk, token) = (other, rights.0);
            let order = CopyOrder { chunk, token, ..bed.copy_from(&[0], 5000) };
            orders.push(bed.to_copy(1, order));
        }
        bed.stores[0].hang();
        let waiting: Vec<_> = orders.into_iter().map(|order| bed.send_control(1, order)).collect();
        bed.env.sleep(Duration::from_millis(500)).await;
        let order = bed.to_copy(1, CopyOrder { seal: false, ..bed.copy_from(&[2], 5000) });
        let reply = bed.control(1, order).await.unwrap();
        let ChunkserverReply::Replicated { stat, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(stat.len, 5000);
        drop(waiting);
    });
}
