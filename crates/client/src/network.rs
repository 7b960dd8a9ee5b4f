//! [`Peers`] over the transport.

use std::net::SocketAddr;

use futures_util::future::{FutureExt, LocalBoxFuture};
use runtime::{Buf, Duration, Env};
use transport::{CallError, Endpoint, Priority, Request, Response, Service, Token};
use wire::control::{ControlError, ControlReply, ControlRequest, OP_RELAY};
use wire::data::{DataError, DataRequest};
use wire::data_codec::decode_answer;

use crate::peers::{DataAnswer, PeerError, Peers, Recipient};

/// Other processes, reached through an endpoint.
#[derive(Clone, Debug)]
pub struct Network {
    env: Env,
    endpoint: Endpoint,
}

impl Network {
    /// Calls go out through `endpoint`.
    pub fn new(env: &Env, endpoint: Endpoint) -> Network {
        Network { env: env.clone(), endpoint }
    }
}

impl Peers for Network {
    fn control(
        &self,
        to: Recipient,
        request: ControlRequest,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<ControlReply, PeerError<ControlError>>> {
        let request = Request {
            service: Service::CONTROL,
            op: if to.relays { OP_RELAY } else { 0 }, // The body says what is asked.
            priority: Priority::Foreground,
            flow: 0,
            trace: self.env.trace(),
            token: Token::NONE,
            body: request.encode(),
            payload: None,
        };
        let endpoint = self.endpoint.clone();
        async move {
            let response = endpoint.call(to.addr, request, timeout).await.map_err(call_error)?;
            control_answer(to.addr, &response)
        }
        .boxed_local()
    }

    fn data(
        &self,
        to: SocketAddr,
        request: DataRequest,
        token: [u8; 16],
        payload: Option<Buf>,
        timeout: Duration,
    ) -> LocalBoxFuture<'static, Result<DataAnswer, PeerError<DataError>>> {
        let flow = match &request {
            DataRequest::Append(append) => append.at.chunk.get(),
            _ => 0,
        };
        let request = Request {
            service: Service::DATA,
            op: request.op(),
            priority: Priority::Foreground,
            flow,
            trace: self.env.trace(),
            token: Token(token),
            body: request.encode(),
            payload,
        };
        let endpoint = self.endpoint.clone();
        async move {
            let response = endpoint.call(to, request, timeout).await.map_err(call_error)?;
            match decode_answer(response.status, &response.body) {
                Ok(Ok(reply)) => Ok((reply, response.payload)),
                Ok(Err(error)) => Err(PeerError::Refused(error)),
                Err(error) => Err(PeerError::Foreign(format!("{to}: {error}"))),
            }
        }
        .boxed_local()
    }
}

fn control_answer(
    to: SocketAddr,
    response: &Response,
) -> Result<ControlReply, PeerError<ControlError>> {
    if response.status == 0 {
        let reply = ControlReply::decode(&response.body);
        return reply.map_err(|error| PeerError::Foreign(format!("{to}: {error}")));
    }
    Err(match ControlError::decode(&response.body) {
        Ok(error) => PeerError::Refused(error),
        Err(error) => PeerError::Foreign(format!("{to}: {error}")),
    })
}

fn call_error<E>(error: CallError) -> PeerError<E> {
    match error {
        CallError::Unreachable(why) => PeerError::Unreachable(why),
        CallError::Timeout | CallError::Closed => PeerError::Silent(error.to_string()),
        CallError::Busy => PeerError::Busy,
        CallError::Refused(why) => PeerError::Foreign(why),
    }
}
