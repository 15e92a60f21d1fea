// Memory pools: allocations in the order of a stream.
#pragma once

// Called before any device memory is freed: the pools forget it.
void forget_pooled(const void* pointer);
