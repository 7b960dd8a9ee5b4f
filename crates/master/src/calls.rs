//! Calls from the stream service to chunkservers, over the transport.

use std::time::Duration;

use base::{ChunkId, Epoch, Kind};
use runtime::Env;
use transport::{Endpoint, Priority, Request, Response, Service, Token};
use wire::control::{
    ChunkserverReply, ChunkserverRequest, ControlError, ControlReply, ControlRequest, Conversion,
    CopyOrder, ReplicaPlace, RowCheck, RowFindings,
};
use wire::data::{ChunkRef, DataReply, DataRequest, FenceRequest, ReplicaStat, SealRequest};
use wire::data_codec::decode_answer;
use wire::token::IssuerTime;

use master_consensus::LocalFuture;
use master_stream::{CallError, ChunkserverCalls, Listing};

/// No call takes longer; callers give up far earlier.
const TIMEOUT: Duration = Duration::from_secs(300);

/// [`ChunkserverCalls`] over an endpoint.
pub struct TransportCalls {
    env: Env,
    endpoint: Endpoint,
}

impl TransportCalls {
    /// Calls through `endpoint`.
    pub fn new(env: &Env, endpoint: Endpoint) -> TransportCalls {
        TransportCalls { env: env.clone(), endpoint }
    }

    async fn call(&self, to: ReplicaPlace, request: Request) -> Result<Response, CallError> {
        let answer = self.endpoint.call(to.addr, request, TIMEOUT).await;
        answer.map_err(|error| match error.kind() {
            // Nothing was done; the service may try again.
            Kind::Retry | Kind::Unknown => CallError::Unreachable,
            kind => CallError::Control(ControlError::new(kind, error.to_string())),
        })
    }

    async fn data(
        &self,
        to: ReplicaPlace,
        request: DataRequest,
        token: Token,
    ) -> Result<ReplicaStat, CallError> {
        let request = Request {
            service: Service::DATA,
            op: request.op(),
            priority: Priority::Control,
            flow: 0,
            trace: self.env.trace(),
            token,
            body: request.encode(),
            payload: None,
        };
        let answer = self.call(to, request).await?;
        match decode_answer(answer.status, &answer.body) {
            Ok(Ok(DataReply::Stat(stat))) => Ok(stat),
            Ok(Ok(_)) => Err(unexpected_reply("an answer to another question")),
            Ok(Err(error)) => Err(CallError::Data(error)),
            Err(error) => Err(unexpected_reply(&error.to_string())),
        }
    }

    async fn control(
        &self,
        to: ReplicaPlace,
        request: ChunkserverRequest,
    ) -> Result<ChunkserverReply, CallError> {
        let request = Request {
            service: Service::CONTROL,
            op: 0,
            priority: Priority::Background,
            flow: 0,
            trace: self.env.trace(),
            token: Token::NONE,
            body: ControlRequest::Chunkserver(request).encode(),
            payload: None,
        };
        let answer = self.call(to, request).await?;
        if answer.status != 0 {
            let error = ControlError::decode(&answer.body);
            return Err(
                error.map_or_else(|it| unexpected_reply(&it.to_string()), CallError::Control)
            );
        }
        match ControlReply::decode(&answer.body) {
            Ok(ControlReply::Chunkserver(reply)) => Ok(reply),
            Ok(_) => Err(unexpected_reply("an answer of another service")),
            Err(error) => Err(unexpected_reply(&error.to_string())),
        }
    }

    async fn order(&self, to: ReplicaPlace, order: ChunkserverRequest) -> Result<(), CallError> {
        match self.control(to, order).await? {
            ChunkserverReply::Done => Ok(()),
            _ => Err(unexpected_reply("an answer to another question")),
        }
    }
}

fn unexpected_reply(what: &str) -> CallError {
    CallError::Control(ControlError::new(Kind::Invalid, format!("the chunkserver sent {what}")))
}

impl ChunkserverCalls for TransportCalls {
    fn fence(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        epoch: Epoch,
        token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>> {
        let at = ChunkRef { chunk, disk: to.disk };
        Box::pin(self.data(to, DataRequest::Fence(FenceRequest { at, epoch }), token))
    }

    fn seal(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        len: u32,
        token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>> {
        let at = ChunkRef { chunk, disk: to.disk };
        Box::pin(self.data(to, DataRequest::Seal(SealRequest { at, len }), token))
    }

    fn stat(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        token: Token,
    ) -> LocalFuture<'_, Result<ReplicaStat, CallError>> {
        Box::pin(self.data(to, DataRequest::Stat(ChunkRef { chunk, disk: to.disk }), token))
    }

    fn replicate(
        &self,
        to: ReplicaPlace,
        order: CopyOrder,
    ) -> LocalFuture<'_, Result<(ReplicaStat, u64), CallError>> {
        let order = ChunkserverRequest::Replicate { disk: to.disk, order };
        Box::pin(async move {
            match self.control(to, order).await? {
                ChunkserverReply::Replicated { stat, bytes } => Ok((stat, bytes)),
                _ => Err(unexpected_reply("an answer to another question")),
            }
        })
    }

    fn convert(
        &self,
        to: ReplicaPlace,
        order: Conversion,
    ) -> LocalFuture<'_, Result<Vec<u32>, CallError>> {
        Box::pin(async move {
            let order = ChunkserverRequest::Convert { disk: to.disk, order };
            match self.control(to, order).await? {
                ChunkserverReply::Converted { digests } => Ok(digests),
                _ => Err(unexpected_reply("an answer to another question")),
            }
        })
    }

    fn digest(
        &self,
        to: ReplicaPlace,
        chunk: ChunkId,
        len: u32,
    ) -> LocalFuture<'_, Result<u32, CallError>> {
        Box::pin(async move {
            let order = ChunkserverRequest::Digest { disk: to.disk, chunk, len };
            match self.control(to, order).await? {
                ChunkserverReply::Digest { crc } => Ok(crc),
                _ => Err(unexpected_reply("an answer to another question")),
            }
        })
    }

    fn check_rows(
        &self,
        to: ReplicaPlace,
        order: RowCheck,
    ) -> LocalFuture<'_, Result<RowFindings, CallError>> {
        Box::pin(async move {
            let order = ChunkserverRequest::CheckRows { disk: to.disk, order };
            match self.control(to, order).await? {
                ChunkserverReply::RowsChecked(found) => Ok(found),
                _ => Err(unexpected_reply("an answer to another question")),
            }
        })
    }

    fn delete(
        &self,
        to: ReplicaPlace,
        chunks: Vec<ChunkId>,
        not_after: IssuerTime,
    ) -> LocalFuture<'_, Result<(), CallError>> {
        let order =
            ChunkserverRequest::Delete { disk: to.disk, chunks, not_after: Some(not_after) };
        Box::pin(self.order(to, order))
    }

    fn forget(
        &self,
        to: ReplicaPlace,
        chunks: Vec<ChunkId>,
        not_after: IssuerTime,
    ) -> LocalFuture<'_, Result<(), CallError>> {
        let order =
            ChunkserverRequest::Forget { disk: to.disk, chunks, not_after: Some(not_after) };
        Box::pin(self.order(to, order))
    }

    fn list(
        &self,
        to: ReplicaPlace,
        after: Option<ChunkId>,
        limit: u32,
    ) -> LocalFuture<'_, Result<Listing, CallError>> {
        Box::pin(async move {
            let request = ChunkserverRequest::List { disk: to.disk, after, limit };
            match self.control(to, request).await? {
                ChunkserverReply::List { replicas, more } => {
                    Ok((replicas.into_iter().map(|one| (one.chunk, one.stat)).collect(), more))
                }
                _ => Err(unexpected_reply("an answer to another question")),
            }
        })
    }
}
