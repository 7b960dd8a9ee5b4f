mod basics;
mod facts;
mod kept;
mod locks;
mod owners;
mod quotas;
mod support;
mod uploads;
