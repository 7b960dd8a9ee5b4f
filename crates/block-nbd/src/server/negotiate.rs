//! Negotiation: greeting, options, the choice of an export.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use base::{Fault, Kind};
use block_volume::buffer::alloc;
use block_volume::contract::Device;
use block_volume::export::About;
use runtime::Stream;

use super::handshakes::Handshake;
use super::input::{Input, InputEnd};
use super::shared::{ConnectionPermit, ExportPermit, FrontendInner};
use super::tls::{self, Incoming, Outgoing, TlsPolicy};
use crate::protocol::limits::{NBD_BATCH_BYTES, NBD_DATA_MAX, NBD_STRING_MAX};
use crate::protocol::{
    BASE_ALLOCATION, ClientHello, Greeting, MetaQuery, OptionCode, OptionFlaw, OptionHead,
    OptionReply, OptionRequest, ReplyCode, Select, ServerInfo, encode_export_name_reply,
    export_flags,
};

/// Best size of a request: a block.
const PREFERRED: u32 = block_volume::limits::BLOCK as u32;

/// Result of a negotiation.
pub(super) struct Chosen {
    pub(super) connection: ConnectionPermit,
    pub(super) export: ExportPermit,
    pub(super) about: About,
    pub(super) device: Rc<dyn Device>,
    pub(super) structured: bool,
    /// Block status may be asked for `base:allocation`.
    pub(super) allocation: bool,
}

/// Number of `base:allocation` on every connection.
pub(super) const ALLOCATION_ID: u32 = 1;

/// Access of a connection, by its origin and certificate.
enum Access {
    /// It comes from this machine.
    Open,
    /// It comes from another machine, and has to begin TLS first.
    Closed(Rc<TlsPolicy>),
    /// It has begun TLS, with these names in its certificate.
    Known(Rc<TlsPolicy>, Vec<String>),
}

impl Access {
    fn allows(&self, volume: &str) -> bool {
        match self {
            Access::Open => true,
            Access::Closed(_) => false,
            Access::Known(tls, names) => tls.allows(names, volume),
        }
    }
}

struct Negotiation<'a> {
    inner: &'a Rc<FrontendInner>,
    handshake: &'a Handshake,
    input: Input,
    write: Outgoing,
    peer: SocketAddr,
    access: Access,
    structured: bool,
    /// The export that metadata contexts were chosen for, when ours is among them.
    contexts: Option<String>,
    out: Vec<u8>,
}

/// Answers options until an export is chosen; then the connection goes on from there.
pub(super) async fn run(
    inner: &Rc<FrontendInner>,
    handshake: &Handshake,
    stream: Stream,
    tls: Option<Rc<TlsPolicy>>,
) -> Result<(Chosen, Input, Outgoing), InputEnd> {
    let Stream { read, write, peer } = stream;
    let access = tls.map_or(Access::Open, Access::Closed);
    let mut this = Negotiation {
        inner,
        handshake,
        input: Input::new(&inner.env, Incoming::Plain(read)).await?,
        write: Outgoing::Plain(write),
        peer,
        access,
        structured: false,
        contexts: None,
        out: Vec::new(),
    };
    this.out.extend_from_slice(&Greeting { fixed: true, no_zeroes: true }.encode());
    this.flush().await?;
    let hello = ClientHello::decode(this.input.array().await?)?;
    loop {
        let head = OptionHead::decode(&this.input.array().await?)?;
        let data = this.input.bytes(head.len as usize).await?;
        let request = OptionRequest::decode(head.code, &data);
        if matches!((&request, &this.access), (Ok(OptionRequest::StartTls), Access::Closed(_))) {
            this = this.start_tls().await?;
            continue;
        }
        let chosen = match request {
            Ok(request) => this.answer(head.code, request, hello).await?,
            // The oldest way to choose an export has no refusal.
            Err(_) if head.code == OptionCode::ExportName => return Err(InputEnd::Closed),
            Err(flaw) => {
                let message = match flaw {
                    OptionFlaw::Unsupported => "this option is not known here",
                    OptionFlaw::Invalid => "the option's data does not have its form",
                };
                this.refuse(head.code, flaw.reply(), message);
                None
            }
        };
        this.flush().await?;
        if let Some(chosen) = chosen {
            return Ok((chosen, this.input, this.write));
        }
    }
}

impl<'a> Negotiation<'a> {
    /// Goes on with TLS; options before it do not count.
    async fn start_tls(mut self) -> Result<Negotiation<'a>, InputEnd> {
        self.reply(OptionCode::StartTls, &OptionReply::Ack);
        self.flush().await?;
        let (inner, handshake, peer) = (self.inner, self.handshake, self.peer);
        let tls = match self.access {
            Access::Closed(tls) => tls,
            Access::Open | Access::Known(..) => unreachable!("looked at by the caller"),
        };
        // Bytes that came in the clear must not be taken for bytes of the session.
        let (Some(Incoming::Plain(read)), Outgoing::Plain(write)) =
            (self.input.into_inner(), self.write)
        else {
            if let Some(unlogged) = inner.refusal() {
                tracing::warn!(%peer, unlogged, "NBD client closed: it did not wait for TLS");
            }
            return Err(InputEnd::Closed);
        };
        let begun = tls::begin(&inner.env, &tls, read, write).await;
        let (read, write, names) = begun.map_err(|error| {
            inner.env.mark("nbd: TLS refused");
            if let Some(unlogged) = inner.refusal() {
                tracing::warn!(%peer, unlogged, "NBD client closed: no TLS session: {error}");
            }
            InputEnd::Closed
        })?;
        handshake.prove(&names);
        tracing::info!(%peer, ?names, "NBD client has shown its certificate");
        Ok(Negotiation {
            inner,
            handshake,
            input: Input::new(&inner.env, Incoming::Tls(read)).await?,
            write: Outgoing::Tls(write),
            peer,
            access: Access::Known(tls, names),
            structured: false,
            contexts: None,
            out: Vec::new(),
        })
    }

    async fn flush(&mut self) -> Result<(), InputEnd> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        for part in out.chunks(NBD_BATCH_BYTES) {
            let buf = alloc(&self.inner.env, part.len()).await;
            let mut buf = buf.map_err(|_| InputEnd::Closed)?;
            buf.copy_from_slice(part);
            self.write.write_all(vec![buf.freeze()]).await.map_err(|_| InputEnd::Closed)?;
        }
        Ok(())
    }

    fn reply(&mut self, to: OptionCode, reply: &OptionReply) {
        reply.encode(to, &mut self.out);
    }

    fn refuse(&mut self, to: OptionCode, code: ReplyCode, message: &str) {
        let message = cut(message);
        self.reply(to, &OptionReply::Refused { code, message });
    }

    fn refuse_fault(&mut self, to: OptionCode, fault: &Fault) {
        let code = match fault.kind {
            Kind::NotFound => ReplyCode::Unknown,
            // Another client has it open, or it is not for this client.
            Kind::Exists | Kind::Fenced | Kind::Invalid => ReplyCode::Policy,
            _ => ReplyCode::Platform,
        };
        self.refuse(to, code, &fault.message);
    }

    async fn answer(
        &mut self,
        code: OptionCode,
        request: OptionRequest,
        hello: ClientHello,
    ) -> Result<Option<Chosen>, InputEnd> {
        let allowed_before = matches!(request, OptionRequest::Abort);
        if matches!(self.access, Access::Closed(_)) && !allowed_before {
            if code == OptionCode::ExportName {
                return Err(InputEnd::Closed); // It has no refusal.
            }
            self.refuse(code, ReplyCode::TlsRequired, "TLS with a client certificate comes first");
            return Ok(None);
        }
        match request {
            OptionRequest::ExportName(name) => {
                let chosen = self.choose(&name).await.map_err(|fault| {
                    if let Some(unlogged) = self.inner.refusal() {
                        let peer = self.peer;
                        tracing::info!(%peer, name, unlogged, "NBD client closed: {fault}");
                    }
                    InputEnd::Closed
                })?;
                let (size, flags) = (chosen.device.bytes(), self.flags(&chosen.about));
                encode_export_name_reply(size, flags, hello.no_zeroes, &mut self.out);
                return Ok(Some(chosen));
            }
            OptionRequest::Abort => {
                self.reply(code, &OptionReply::Ack);
                self.flush().await?;
                return Err(InputEnd::Closed);
            }
            OptionRequest::List => self.list().await?,
            OptionRequest::StartTls => match self.access {
                Access::Known(..) => self.refuse(code, ReplyCode::Invalid, "TLS has begun already"),
                _ => self.refuse(code, ReplyCode::Policy, "TLS is not configured here"),
            },
            OptionRequest::Info(select) => match self.about(&select.name).await {
                Ok((name, about)) => {
                    let size = about.bytes;
                    self.tell(code, &select, &name, &about, size);
                }
                Err(fault) => self.refuse_fault(code, &fault),
            },
            OptionRequest::Go(select) => match self.choose(&select.name).await {
                Ok(chosen) => {
                    let size = chosen.device.bytes();
                    self.tell(code, &select, &chosen.export.name, &chosen.about, size);
                    return Ok(Some(chosen));
                }
                Err(fault) => self.refuse_fault(code, &fault),
            },
            OptionRequest::StructuredReply => {
                self.structured = true;
                self.reply(code, &OptionReply::Ack);
            }
            OptionRequest::ListMetaContext(query) => self.contexts(code, query, false).await,
            OptionRequest::SetMetaContext(query) => self.contexts(code, query, true).await,
        }
        Ok(None)
    }

    /// Lists exports page by page: of a long list the client has taken one before the next is read.
    async fn list(&mut self) -> Result<(), InputEnd> {
        let mut after = None;
        loop {
            let page = self.inner.exports.names(after.as_deref()).await;
            let page = match page {
                Ok(page) => page,
                Err(fault) => {
                    self.refuse_fault(OptionCode::List, &fault);
                    return Ok(());
                }
            };
            after = page.names.last().cloned();
            for name in page.names {
                if self.access.allows(&name) {
                    self.reply(OptionCode::List, &OptionReply::Server(name));
                }
            }
            if !page.more || after.is_none() {
                break;
            }
            self.flush().await?;
        }
        self.reply(OptionCode::List, &OptionReply::Ack);
        Ok(())
    }

    /// The only export that this client may open; `NotFound` when there are several, or none.
    async fn only_name(&self) -> Result<String, Fault> {
        let (mut only, mut after) = (None, None);
        loop {
            let page = self.inner.exports.names(after.as_deref()).await?;
            after = page.names.last().cloned();
            for name in page.names.into_iter().filter(|name| self.access.allows(name)) {
                if only.replace(name).is_some() {
                    let why = "several volumes are here: name one in the URI's path";
                    return Err(Fault::new(Kind::NotFound, why));
                }
            }
            if !page.more || after.is_none() {
                let why = "no volume is here: make one with 'craton volume create'";
                return only.ok_or_else(|| Fault::new(Kind::NotFound, why));
            }
        }
    }

    /// Facts of an export, by its own name: the empty name stands for the only export.
    async fn about(&self, name: &str) -> Result<(String, About), Fault> {
        let mut name = name.to_owned();
        if name.is_empty() {
            name = self.only_name().await?;
        }
        if !self.access.allows(&name) {
            self.inner.env.mark("nbd: not on the allow-list");
            // It does not learn whether a volume exists that it may not open.
            let why = format!("no name in your certificate is on the list of '{name}'");
            return Err(Fault::new(Kind::Fenced, why));
        }
        let about = self.inner.exports.about(&name).await?;
        Ok((name, about))
    }

    async fn choose(&self, name: &str) -> Result<Chosen, Fault> {
        let (name, about) = self.about(name).await?;
        let connection = ConnectionPermit::take(self.inner).ok_or_else(|| {
            let why = format!(
                "{} connections have a volume open: close one, or use another front end",
                self.inner.limits.connections_max
            );
            Fault::new(Kind::Exists, why)
        })?;
        let export = self.permit(&name, about.shared)?;
        let device = self.inner.exports.open(&name).await?;
        let allocation = self.contexts.as_deref() == Some(&*name);
        Ok(Chosen { connection, export, about, device, structured: self.structured, allocation })
    }

    fn permit(&self, name: &str, shared: bool) -> Result<ExportPermit, Fault> {
        let open = &mut *self.inner.open.borrow_mut();
        let count = open.entry(name.to_owned()).or_default();
        if *count > 0 && !shared {
            self.inner.env.mark("nbd: exclusive export is open");
            let why = format!("'{name}' is open exclusively: close it there, or share the volume");
            return Err(Fault::new(Kind::Exists, why));
        }
        *count += 1;
        Ok(ExportPermit { inner: self.inner.clone(), name: name.to_owned() })
    }

    fn flags(&self, about: &About) -> u16 {
        use export_flags as flag;
        let when = |on: bool, flag: u16| if on { flag } else { 0 };
        flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_TRIM
            | flag::SEND_WRITE_ZEROES
            | flag::SEND_CACHE
            | flag::SEND_FAST_ZERO
            | when(self.structured, flag::SEND_DF)
            | when(about.shared, flag::CAN_MULTI_CONN)
            | when(about.read_only, flag::READ_ONLY)
    }

    fn tell(&mut self, to: OptionCode, select: &Select, name: &str, about: &About, size: u64) {
        let flags = self.flags(about);
        let mut facts = vec![ServerInfo::Export { size, flags }];
        let (least, preferred, most) = (1, PREFERRED, NBD_DATA_MAX);
        facts.push(ServerInfo::BlockSize { least, preferred, most });
        // Each once, however often it is asked for: an option has room for thousands.
        for want in select.wants.iter().copied().collect::<BTreeSet<_>>() {
            match want {
                ServerInfo::WANT_NAME => facts.push(ServerInfo::Name(name.to_owned())),
                ServerInfo::WANT_DESCRIPTION => {
                    facts.push(ServerInfo::Description(cut(&about.description)));
                }
                _ => {} // Sent anyway, or unknown.
            }
        }
        for fact in facts {
            self.reply(to, &OptionReply::Info(fact));
        }
        self.reply(to, &OptionReply::Ack);
    }

    async fn contexts(&mut self, to: OptionCode, query: MetaQuery, set: bool) {
        if set {
            self.contexts = None;
            if !self.structured {
                let message = "structured replies have to be agreed on first";
                return self.refuse(to, ReplyCode::Invalid, message);
            }
        }
        let name = match self.about(&query.name).await {
            Ok((name, _)) => name,
            Err(fault) => return self.refuse_fault(to, &fault),
        };
        let is_meant = |text: &String| {
            text == BASE_ALLOCATION || (!set && BASE_ALLOCATION.starts_with(&**text))
        };
        let all = !set && query.queries.is_empty();
        if all || query.queries.iter().any(is_meant) {
            let id = if set { ALLOCATION_ID } else { 0 };
            self.reply(to, &OptionReply::MetaContext { id, name: BASE_ALLOCATION.to_owned() });
            if set {
                self.contexts = Some(name);
            }
        }
        self.reply(to, &OptionReply::Ack);
    }
}

/// The beginning of a text, up to the protocol's limit.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(NBD_STRING_MAX)].to_owned()
}
