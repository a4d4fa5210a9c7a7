//! etcd's own lock service, over one HTTP/2 connection a client: a key under the name with the
//! session's lease, and a watch on the one before it in line. Leases outlast a measurement.

use std::sync::Arc;

use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::peer::{Outcome, Peer, Pending, Session};

pub const NAME: &str = "etcd";

pub struct Etcd {
    clients: Vec<Grpc<Channel>>,
}

impl Etcd {
    pub async fn connect(port: u16, clients: usize) -> Outcome<Self> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        let mut connected = Vec::new();
        for _ in 0..clients {
            connected.push(Grpc::new(endpoint.connect().await?));
        }
        Ok(Self { clients: connected })
    }
}

impl Peer for Etcd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self, number: usize) -> Pending<'_, Box<dyn Session>> {
        let mut client = self.clients[number % self.clients.len()].clone();
        Box::pin(async move {
            let asked = LeaseGrantRequest { ttl: LEASE_SECONDS };
            let lease: LeaseGrantResponse = call(&mut client, "/etcdserverpb.Lease/LeaseGrant", asked).await?;
            let session = Mutex {
                client,
                lease: Arc::new(lease),
                key: Vec::new(),
            };
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }

    /// Its lock service waits or fails; it does not just answer.
    fn can_miss(&self) -> bool {
        false
    }
}

struct Mutex {
    client: Grpc<Channel>,
    lease: Arc<LeaseGrantResponse>,
    key: Vec<u8>,
}

impl Session for Mutex {
    fn acquire<'a>(&'a mut self, name: &'a str) -> Pending<'a, ()> {
        Box::pin(async move {
            let asked = LockRequest {
                name: name.into(),
                lease: self.lease.id,
            };
            let locked: LockResponse = call(&mut self.client, "/v3lockpb.Lock/Lock", asked).await?;
            self.key = locked.key;
            Ok(())
        })
    }

    fn try_acquire<'a>(&'a mut self, _name: &'a str) -> Pending<'a, bool> {
        Box::pin(async { Err("etcd's lock service only waits".into()) })
    }

    fn release(&mut self) -> Pending<'_, ()> {
        Box::pin(async {
            let asked = UnlockRequest {
                key: std::mem::take(&mut self.key),
            };
            let UnlockResponse {} = call(&mut self.client, "/v3lockpb.Lock/Unlock", asked).await?;
            Ok(())
        })
    }
}

/// The lease goes with the session, and its place in a line with the lease.
impl Drop for Mutex {
    fn drop(&mut self) {
        let (mut client, id) = (self.client.clone(), self.lease.id);
        tokio::spawn(async move {
            let asked = LeaseRevokeRequest { id };
            let _: Outcome<LeaseRevokeResponse> = call(&mut client, "/etcdserverpb.Lease/LeaseRevoke", asked).await;
        });
    }
}

async fn call<Q, A>(client: &mut Grpc<Channel>, method: &'static str, request: Q) -> Outcome<A>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    client.ready().await?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = client
        .unary(Request::new(request), PathAndQuery::from_static(method), codec)
        .await?;
    Ok(answer.into_inner())
}

// Of etcd's messages, the fields that are used.

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseRevokeResponse {}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockResponse {}

const LEASE_SECONDS: i64 = 600;
