// Memory pools: allocations in the order of a stream.
#pragma once

// The memory is about to be freed, whoever allocated it.
void forget_pooled(const void* pointer);
